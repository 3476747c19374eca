"""What a batch of the training data looks like: shapes and types, taken from the model or from an example."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memfit.data.looking import read_first
from memfit.data.peeking import first_batch, is_generator
from memfit.errors import CannotTell
from memfit.estimation.recording.symbolic import EXAMPLE, inputs_of, outputs_of

Batch = Any
# The structure of a batch with a tf.TensorSpec for every tensor.
TensorSpecs = Any
_LONGEST = (
    "Make a plan or an estimate with one of the longest batches as an example: memfit.plan(..., data=(x, y)); "
    "memfit.fit takes the plan as plan="
)


# Enough to know the range of whole numbers, and read in no time.
_SEEN_SAMPLES = 4096
# Text is sent to the recorder's process, and may be long.
_SEEN_TEXTS = 256


@dataclass(frozen=True)
class Leaf:
    """One tensor of a batch: its shape without the batch dimension, and its type.

    Attributes:
        has_samples: Whether there is a batch dimension; otherwise it is the same for a batch of any size.
        least: The least whole number that it may hold, for each place of the last axis, as far as an example tells.
        largest: The largest: how many rows of an embedding a batch reads, and an update so computes, depends on it.
            Columns of a table have embeddings of their own.
        texts: Text of some samples, as far as an example has any: a lookup may know no other.
        share: Its samples for each sample of the batch: pipelines that are zipped may give batches of other sizes.
    """

    shape: tuple[int, ...]
    dtype: str
    has_samples: bool = True
    least: tuple[int, ...] = (0,)
    largest: tuple[int, ...] = (0,)
    texts: tuple[str | bytes, ...] = ()
    share: float = 1.0

    def shape_at(self, size: int | None) -> tuple[int | None, ...]:
        """Returns its whole shape for that many samples."""
        if not self.has_samples:
            return self.shape
        return (None if size is None else max(1, round(size * self.share)), *self.shape)


@dataclass(frozen=True)
class Spec:
    """What Keras gives a step, x, (x, y) or (x, y, sample_weight), with a `Leaf` for every tensor."""

    structure: Any

    def batch(self, size: int) -> Batch:
        """Returns a batch of that many samples: floats from 0 to 1, whole numbers that are valid indices, text."""
        import numpy as np

        random = np.random.default_rng(0)

        def make(leaf: Leaf) -> Any:
            shape: Any = leaf.shape_at(size)
            if leaf.dtype == "string":
                return np.resize(np.array(leaf.texts or ("",), object), shape)
            if "float" in leaf.dtype:
                import tensorflow as tf

                return random.random(shape, dtype="float32").astype(tf.as_dtype(leaf.dtype).as_numpy_dtype)
            return random.integers(leaf.least, leaf.largest, shape, endpoint=True).astype(leaf.dtype)

        return mapped(make, self.structure)

    def tensor_specs(self, size: int | None) -> TensorSpecs:
        """Returns a `tf.TensorSpec` for every tensor of a batch of that many samples, None for any number."""
        import tensorflow as tf

        return mapped(lambda leaf: tf.TensorSpec(leaf.shape_at(size), leaf.dtype), self.structure)

    def without_texts(self) -> "Spec":
        """Returns what of it names a recording: a pipeline that shuffles begins with other text every time."""
        return Spec(mapped(lambda leaf: replace(leaf, texts=()), self.structure))

    @staticmethod
    def like(outputs: Any, size: int) -> Any:
        """Returns zeros of the shapes of a model's symbolic outputs, for a batch of that size."""
        import tensorflow as tf

        return mapped(lambda t: tf.zeros((size, *(d or 1 for d in t.shape[1:])), t.dtype), outputs)


def spec_of(model: Any, data: Any = None) -> Spec:
    """Returns what a training batch of `model` looks like.

    Args:
        model: A compiled Keras model.
        data: An example in any form that `fit` takes, a `Spec`, or None to read the model itself.

    Raises:
        CannotTell: If a shape is unknown.
    """
    if isinstance(data, Spec):
        return data
    if data is not None:
        return Spec(_from_example(model, data))
    x = mapped(lambda t: _leaf(t.name, t.shape, t.dtype), inputs_of(model))
    return Spec((x, _targets(model)))


def fixed_batch(model: Any) -> int | None:
    """Returns the only batch size that the inputs of a model allow, as for stateful layers; None for any."""
    sizes = {tensor.shape[0] for tensor in getattr(model, "inputs", None) or []} - {None}
    return min(sizes, default=None)


def bytes_per_sample(spec: Spec) -> list[int]:
    """Returns the bytes of each tensor of a batch, per sample."""
    import tensorflow as tf

    leaves: list[Leaf] = []
    mapped(leaves.append, spec.structure)
    return [
        round(math.prod(leaf.shape) * leaf.share * tf.as_dtype(leaf.dtype).size)
        for leaf in leaves
        if leaf.has_samples
    ]


def mapped(function: Any, structure: Any) -> Any:
    """Applies a function to every leaf of nested tuples (named ones, too), lists and dicts; None stays None."""
    if structure is None:
        return None
    if isinstance(structure, Mapping):
        return {key: mapped(function, value) for key, value in structure.items()}
    if isinstance(structure, tuple | list):
        values = [mapped(function, value) for value in structure]
        return type(structure)(*values) if hasattr(structure, "_fields") else type(structure)(values)
    return function(structure)


def _leaf(name: str, shape: Any, dtype: Any, remedy: str = EXAMPLE) -> Leaf:
    sizes = tuple(shape)[1:]
    if any(size is None for size in sizes):
        raise CannotTell(
            f"Every dimension of an input but the batch must be known, and {name!r} leaves one open",
            received=tuple(shape),
            remedy=remedy,
        )
    named = str(getattr(dtype, "name", dtype))
    # NumPy's types of text, and objects, of which Keras makes text.
    text = named == "object" or named.startswith(("str", "bytes"))
    return Leaf(tuple(int(size) for size in sizes), "string" if text else named)


def _targets(model: Any) -> Any:
    """Targets as the compiled loss wants them: class numbers for sparse losses, else shaped like the outputs."""
    outputs = outputs_of(model)
    losses = model.loss

    def target(output: Any, loss: Any) -> Leaf:
        leaf = _leaf("output", output.shape, output.dtype)
        name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
        if "sparse" in str(name).lower():
            return Leaf(leaf.shape[:-1], "int32")
        return Leaf(leaf.shape, "float32")

    if isinstance(outputs, Mapping):
        return {
            key: target(out, losses.get(key) if isinstance(losses, Mapping) else losses)
            for key, out in outputs.items()
        }
    if isinstance(outputs, tuple | list):
        names = list(getattr(model, "output_names", [])) or [None] * len(outputs)
        targets = []
        for position, (name, output) in enumerate(zip(names, outputs, strict=True)):
            loss = losses
            if isinstance(losses, Mapping):
                loss = losses.get(name)
            elif isinstance(losses, tuple | list):
                loss = losses[position]
            targets.append(target(output, loss))
        return type(outputs)(targets)
    if isinstance(losses, tuple | list):
        losses = losses[0]
    elif isinstance(losses, Mapping):
        losses = next(iter(losses.values()))
    return target(outputs, losses)


def _from_example(model: Any, data: Any) -> Any:
    """What Keras gives a step, and no more: a step of one's own may take it apart as `x, y = data`."""
    import keras

    if is_generator(data):
        raise CannotTell(
            "A generator cannot be looked at without losing a batch",
            received=type(data).__name__,
            remedy="Pass an example of its batches as data=(x, y)",
        )
    element = getattr(data, "element_spec", None)
    of_arrays = element is None
    texts = {} if of_arrays else _texts_of_pipeline(data, element)
    if element is None:
        element = data
        if isinstance(data, tuple) and len(data) <= 3:
            element = keras.utils.pack_x_y_sample_weight(*data)
        elif isinstance(data, list):
            element = (data,)  # several inputs
        elif hasattr(data, "__getitem__") and not (
            isinstance(data, tuple | Mapping) or hasattr(data, "shape")
        ):
            first = first_batch(data)  # of a PyDataset
            element = tuple(first) if isinstance(first, list) else first
            of_arrays = False
    element = _as_arrays(element)
    wanted = _input_shapes(model, element[0] if isinstance(element, tuple) else element)
    sizes: list[Any] = []
    mapped(lambda part: sizes.append(_samples_in(part)), element)

    def leaf(part: Any) -> Leaf:
        dtype = _type_in_fit(part.dtype) if of_arrays else part.dtype
        shape = _filled(part.shape, wanted.get(id(part)))
        made = _leaf("data", shape, dtype, _LONGEST)
        least, largest = _find_range(part)
        seen = texts.get(id(part), part) if made.dtype == "string" else ()
        size = _samples_in(part)
        share = size / sizes[0] if size and sizes[0] else 1.0
        return replace(made, least=least, largest=largest, texts=_flat_texts(seen), share=share)

    return mapped(leaf, element)


def _samples_in(part: Any) -> int | None:
    """The samples of a part of a batch, as far as its shape tells."""
    shape = part.shape
    return None if getattr(shape, "rank", 0) is None or len(shape) == 0 else shape[0]


def _find_range(part: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The least and the largest of the first samples by place on the last axis, where these are whole numbers."""
    import numpy as np

    if not hasattr(part, "__array__") or len(part.shape) == 0:
        return (0,), (0,)
    first = np.asarray(part[:_SEEN_SAMPLES])
    if first.dtype.kind not in "iu" or first.size == 0:
        return (0,), (0,)
    places = first.reshape(-1, first.shape[-1] if first.ndim > 1 else 1)
    return tuple(map(int, places.min(axis=0))), tuple(map(int, places.max(axis=0)))


def _texts_of_pipeline(data: Any, element: Any) -> dict[int, Any]:
    """Returns text of a first batch, by the identity of its specs; none where a look would be noticed."""
    specs: list[Any] = []
    mapped(specs.append, element)
    if not any(getattr(spec, "dtype", None) == "string" for spec in specs):
        return {}
    parts: list[Any] = []
    mapped(parts.append, read_first(data))
    return dict(zip(map(id, specs), parts, strict=True)) if parts else {}


def _flat_texts(part: Any) -> tuple[str | bytes, ...]:
    """Returns the text of the first samples, those of one behind those of the other."""
    import numpy as np

    if not hasattr(part, "__array__") or len(part.shape) == 0:
        return ()
    first = np.asarray(part[:_SEEN_TEXTS]).ravel()
    return tuple(text for text in first.tolist() if isinstance(text, str | bytes))


def _type_in_fit(dtype: Any) -> str:
    """The type that `fit` gives an array of a type: all floats become Keras's own, other types stay."""
    import keras

    name = str(getattr(dtype, "name", dtype))
    return keras.config.floatx() if name.startswith(("float", "bfloat")) else name


def _input_shapes(model: Any, x: Any) -> dict[int, Any]:
    """Returns the shapes that the model's inputs have, by the identity of the parts of x."""
    import keras

    inputs = getattr(model, "inputs", None) or []
    if isinstance(x, Mapping):
        shapes = {tensor.name: tensor.shape for tensor in inputs}
        return {id(part): shapes.get(name) for name, part in x.items()}
    parts = keras.tree.flatten(x)
    if len(parts) != len(inputs):
        return {}
    return {id(part): tensor.shape for part, tensor in zip(parts, inputs, strict=True)}


def _filled(shape: Any, wanted: Any) -> Any:
    """Returns a shape whose open dimensions are those of another, as far as that says them."""
    if getattr(shape, "rank", 0) is None:
        return (None, None) if wanted is None else wanted
    if wanted is None or len(shape) != len(wanted):
        return shape
    return tuple(want if size is None else size for size, want in zip(tuple(shape), wanted, strict=True))


def _as_arrays(element: Any) -> Any:
    import numpy as np

    def as_array(leaf: Any) -> Any:
        # A table of pandas has a shape, but a type for each of its columns.
        return leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)

    return mapped(as_array, element)
