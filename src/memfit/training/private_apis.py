"""The private Keras and TensorFlow APIs this room uses; the supervisor has a file of its own.

Nothing public gives a loss before it is reduced, nor lets an op wait that is already in the graph. Checked with
Keras 3.15.1 and TensorFlow 2.21.0; Keras 3.12 has the same names.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def build(model: Any, x: Any, y: Any, sample_weight: Any) -> None:
    """Creates the variables of the model, its metrics and its optimizer, if they do not exist yet.

    Stock Keras creates them while it traces the first step; inside a loop's body TensorFlow forbids that.
    """
    parts = (model._compile_loss, model._compile_metrics, model.optimizer)
    unbuilt = any(part is not None and not part.built for part in parts)
    if unbuilt or not all(layer.built for layer in model._flatten_layers()):
        model._symbolic_build(data_batch=(x, y, sample_weight))


def forward(model: Any, x: Any, *, training: bool) -> Any:
    """Calls the model as Keras's own steps do: `training` is passed only to a `call` that takes it."""
    with _recurrent_weights_read_once(model):
        return model(x, training=training) if model._call_has_training_arg else model(x)


@contextmanager
def _recurrent_weights_read_once(model: Any) -> Iterator[None]:
    """Lets recurrent layers read their weights before their loop over time, where XLA compiles it.

    What a loop's body reads from a variable TensorFlow keeps for the backward pass, once for each time step. That
    is one buffer without XLA, but with it a copy each: 1 GiB a kernel for an LSTM of 512 units over 256 steps.
    """
    import keras
    import tensorflow as tf

    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.RNN)]
    variables = {id(weight): weight for layer in layers for weight in layer.cell.trainable_weights}
    if tf.executing_eagerly() or not compiles_with_xla(tf.compat.v1.get_default_graph()):
        variables = {}
    own = {key: variable._value for key, variable in variables.items()}
    try:
        for variable in variables.values():
            variable._value = tf.convert_to_tensor(variable._value)
        yield
    finally:
        for key, variable in variables.items():
            variable._value = own[key]


def compute_loss(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> Any:
    """Calls `model.compute_loss` as Keras's own steps do (an override may lack `training`)."""
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def compute_compiled_loss(model: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Computes the losses given to `compile()`, without any other."""
    return model._compile_loss(y, y_pred, sample_weight)


def track_loss(model: Any, loss: Any, samples: Any) -> None:
    """Gives the batch's loss to the metric named "loss", as Keras's own steps do."""
    model._loss_tracker.update_state(loss, sample_weight=samples)


def losses(model: Any) -> list[Any]:
    """The Keras losses of a built model, one for each output that has one."""
    compiled = model._compile_loss
    return [] if compiled is None else [entry.loss for entry in compiled._flat_losses]


def loss_metrics(model: Any) -> list[Any]:
    """The metrics that follow the losses of the single outputs; empty for a model with one output."""
    return [] if model._compile_loss is None else list(model._compile_loss.metrics)


def embeddings(model: Any) -> list[Any]:
    """The tables of a model's embedding layers."""
    import keras

    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    return [weight for layer in layers for weight in layer.trainable_weights]


def compiled_mark(model: Any) -> object:
    """An object that is another one after every `compile()`."""
    return model._loss_tracker


class _KeptSteps(dict[Any, Any]):
    """Compiled steps stay behind where a model is copied or sent to another process: a graph cannot be."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


def kept_steps(model: Any) -> dict[Any, Any]:
    """Where steps that were compiled for a model are kept until its next `compile()`, as Keras keeps its own."""
    mark = compiled_mark(model)
    if "_memfit_steps" not in vars(mark):
        object.__setattr__(mark, "_memfit_steps", _KeptSteps())
    kept: dict[Any, Any] = vars(mark)["_memfit_steps"]
    return kept


@contextmanager
def replaced_losses(
    model: Any, stand_ins: Sequence[Callable[..., Any]], metrics: Sequence[Any]
) -> Iterator[None]:
    """Lets `compute_loss` call stand-ins for the model's losses and for the metrics that follow them."""
    compiled = model._compile_loss
    if compiled is None:
        yield
        return
    entries, followers = compiled._flat_losses, compiled._metrics
    pairs = zip(entries, stand_ins, strict=True)
    compiled._flat_losses = [entry._replace(loss=stand_in) for entry, stand_in in pairs]
    compiled._metrics = list(metrics)
    try:
        yield
    finally:
        compiled._flat_losses, compiled._metrics = entries, followers


@contextmanager
def replaced_additional_loss(model: Any, aggregate: Callable[[Any], Any]) -> Iterator[None]:
    """Lets `compute_loss` add `aggregate(loss)` for every loss of `add_loss` and of the regularisers."""
    original = model._aggregate_additional_loss
    object.__setattr__(model, "_aggregate_additional_loss", lambda loss: aggregate(original(loss)))
    try:
        yield
    finally:
        object.__delattr__(model, "_aggregate_additional_loss")


def mask_of(tensor: Any) -> Any:
    """The Keras mask that a tensor carries, or None."""
    from keras.src.backend import get_keras_mask

    return get_keras_mask(tensor)


def masked_weights(sample_weight: Any, mask: Any, dtype: str) -> Any:
    """Merges a mask into sample weights as Keras's losses do, entries masked out weighing 0."""
    from keras.src.losses.loss import apply_mask

    return apply_mask(sample_weight, mask, dtype=dtype, reduction="sum")


def aligned(values: Any, weights: Any) -> tuple[Any, Any]:
    """Brings values and their weights to one rank as Keras's losses do."""
    from keras.src.losses.loss import squeeze_or_expand_to_same_rank

    return squeeze_or_expand_to_same_rank(values, weights)


def batches_itself(x: Any) -> bool:
    """Says whether data yields batches (a dataset, a generator), so that `batch_size` is not Keras's to choose."""
    from keras.src.trainers import data_adapters

    return not data_adapters.array_data_adapter.can_convert_arrays((x,)) and x is not None


def epoch_iterator(model: Any, x: Any, batch_size: int | None, steps: int | None) -> Any:
    """What Keras's `predict` reads its data with: any kind of data in, batches out."""
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    return TFEpochIterator(
        x=x,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=False,
        distribute_strategy=model.distribute_strategy,
        steps_per_execution=model.steps_per_execution,
    )


def next_batches(model: Any, iterator: Any) -> list[Any]:
    """Takes the batches of one execution from Keras's iterator, at least one."""
    import tensorflow as tf

    batches: list[Any] = []
    for _ in range(model.steps_per_execution):
        try:
            batches.append(next(iterator))
        except (StopIteration, tf.errors.OutOfRangeError):
            if not batches:
                raise
            break
    return batches


def output_layers(model: Any) -> list[Any]:
    """The layers whose outputs are those of a functional or sequential model; none for a subclassed one."""
    outputs = getattr(model, "outputs", None)
    return [output._keras_history.operation for output in outputs] if outputs else []


def run_after(op: Any, other: Any) -> None:
    """Lets an op that is already in the graph wait for another."""
    op._add_control_input(other)


def compiles_with_xla(graph: Any) -> bool:
    """Says whether the graph is traced for `jit_compile=True`."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def materialised(tensor: Any) -> Any:
    """Returns a tensor that XLA reads from memory, instead of computing it from its sources once more."""
    return together([tensor])[0]


def together(tensors: Sequence[Any]) -> list[Any]:
    """Returns tensors that XLA reads from memory, each when all of them are there."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return list(gen_xla_ops.xla_optimization_barrier(list(tensors)))


def take_slice(tensor: Any, begin: Any, size: Any) -> Any:
    """Returns rows of a tensor under XLA; where they reach beyond its end, the last rows."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    begins = tf.stack([begin, *[0] * (tensor.shape.rank - 1)])
    return gen_xla_ops.xla_dynamic_slice(tensor, begins, tf.stack([size, *tensor.shape[1:].as_list()]))


def put_slice(tensor: Any, rows: Any, begin: Any) -> Any:
    """Returns a tensor with other rows, written in place; the last ones where they reach beyond its end."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    begins = tf.stack([begin, *[0] * (tensor.shape.rank - 1)])
    return gen_xla_ops.xla_dynamic_update_slice(tensor, rows, begins)


def same_op(op: Any, inputs: Sequence[Any]) -> Any:
    """Makes a copy of an op of another graph in the one that is being built."""
    import tensorflow as tf

    names = [name for name in op.node_def.attr if name not in ("_class", "_output_shapes")]
    return tf.compat.v1.get_default_graph()._create_op_internal(
        op.type,
        list(inputs),
        dtypes=[output.dtype for output in op.outputs],
        name="part",
        attrs={name: op.node_def.attr[name] for name in names},
        op_def=op.op_def,
    )


def global_seed() -> int | None:
    """The seed given to `tf.random.set_seed` or `keras.utils.set_random_seed`; None where nobody gave one."""
    from tensorflow.python.eager import context

    seed: int | None = context.global_seed()
    return seed


def split_off_validation(arrays: Any, share: float) -> tuple[Any, Any]:
    """Cuts arrays into those to train with and those to validate with, as `fit(validation_split=...)` does."""
    from keras.src.trainers.data_adapters.array_slicing import train_validation_split

    train, validation = train_validation_split(arrays, validation_split=share)
    return train, validation


def array_dataset(
    x: Any, y: Any, sample_weight: Any, batch_size: int | None, shuffle: Any, class_weight: Any
) -> Any:
    """The dataset that `fit` makes of arrays."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    adapter = ArrayDataAdapter(
        x, y, sample_weight, batch_size=batch_size, shuffle=shuffle, class_weight=class_weight
    )
    return adapter.get_tf_dataset()


def arrays_of_fit(x: Any, y: Any, sample_weight: Any, class_weight: Any) -> Any:
    """What `fit` makes of NumPy arrays before it cuts them into batches: checked, weighted, floats of one type."""
    from keras.src import tree
    from keras.src.trainers.data_adapters import array_slicing
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    inputs = ArrayDataAdapter(x, y, sample_weight, class_weight=class_weight)._inputs
    sliced = array_slicing.convert_to_sliceable(inputs, target_backend="numpy")
    return tree.map_structure(lambda leaf: None if leaf is None else leaf.array, tree.lists_to_tuples(sliced))


def is_dataset(x: Any) -> bool:
    """Says whether data is a tf.data pipeline (a distributed one is none)."""
    import tensorflow as tf

    return isinstance(x, tf.data.Dataset)
