"""Running somebody's training script up to its first fit(), and taking over what it was about to train."""

import contextlib
import inspect
import io
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from memfit.compat.tf_datasets import dataset_batch_size
from memfit.data.peeking import FirstBatch, first_batch, is_generator
from memfit.errors import InvalidInput, in_one_line


@dataclass(frozen=True)
class FitCall:
    """The first fit() of a script: the model and the arguments by their names in Keras, defaults included."""

    model: Any
    arguments: dict[str, Any]

    @property
    def data(self) -> Any:
        """The training data in the form `estimate(data=...)` takes: a dataset as it is, arrays as a tuple."""
        import numpy as np

        x, y, weight = (self._x, *(self.arguments.get(name) for name in ("y", "sample_weight")))
        if weight is None and y is not None and self.arguments.get("class_weight"):
            weight = np.ones(1, "float32")  # Keras makes a sample weight of every class weight
        if y is None and weight is None:
            return x
        return (x, y) if weight is None else (x, y, weight)

    @property
    def batch_size(self) -> int:
        """Samples in a step: what fit() was given, what the dataset says, or Keras's default of 32."""
        given = self.arguments.get("batch_size")
        if given is not None:
            return int(given)
        if hasattr(self._x, "element_spec"):
            return dataset_batch_size(self._x) or 32
        return _size_of_first(self._x) or 32

    @cached_property
    def _x(self) -> Any:
        """The inputs; a first batch in place of what does not tell its shapes: the script will not read on."""
        x: Any = self.arguments.get("x")
        if is_generator(x):
            return FirstBatch(next(x))
        spec = getattr(x, "element_spec", None)
        if spec is None or (dataset_batch_size(x) is not None and _tells_shapes(spec)):
            return x
        return FirstBatch(next(iter(x)))


class _Reached(BaseException):
    """Leaves the script at its fit(); no `except Exception` of the script stops it."""

    def __init__(self, call: FitCall) -> None:
        super().__init__()
        self.call = call


def first_fit(path: str | Path, arguments: Sequence[str] = (), *, quiet: bool = False) -> FitCall:
    """Runs a script as `python path arguments...` does, up to its first `Model.fit` or `memfit.fit`.

    Args:
        path: The script.
        arguments: What it finds in sys.argv after its name.
        quiet: Whether to hold back what the script prints.

    Returns:
        The model and the arguments of that fit().

    Raises:
        InvalidInput: If there is no such script, it fails before fit(), or it ends without one.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidInput("There is no such script", received=str(path))
    output = io.StringIO() if quiet else sys.stdout
    try:
        with _caught_fit(), _as_main(path, arguments), contextlib.redirect_stdout(output):
            runpy.run_path(str(path), run_name="__main__")
    except _Reached as reached:
        return reached.call
    except SystemExit as end:
        if end.code not in (None, 0):
            raise InvalidInput(
                f"The script ended with exit code {end.code} before it called fit()", received=str(path)
            ) from end
    except Exception as error:  # whatever the user's script raises
        raise InvalidInput(
            f"The script failed before it called fit(): {in_one_line(error)}", received=str(path)
        ) from error
    raise InvalidInput(
        "The script ended and never called model.fit(...) or memfit.fit(model, ...)",
        received=str(path),
        remedy="Give the script that trains; a custom loop can call memfit.estimate(model, batch_size) itself",
    )


@contextlib.contextmanager
def _caught_fit() -> Iterator[None]:
    import keras

    memfit = sys.modules["memfit"]  # the public face, which a room must not import
    original = keras.Model.fit
    own = "fit" in vars(keras.Model)
    ours = vars(memfit).get("fit")

    def fit(model: Any, *args: Any, **kwargs: Any) -> None:
        raise _Reached(FitCall(model, _bound(original, model, args, kwargs)))

    keras.Model.fit = fit
    # memfit.fit takes the model first and then what Model.fit takes: the same function stands in for both.
    vars(memfit)["fit"] = fit
    try:
        yield
    finally:
        if own:
            keras.Model.fit = original
        else:
            del keras.Model.fit
        vars(memfit).pop("fit")
        if ours is not None:
            vars(memfit)["fit"] = ours


def _bound(fit: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name; those that only memfit.fit has (memory, plan) are kept as well."""
    signature = inspect.signature(inspect.unwrap(fit))
    known = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind(model, *args, **known)
    bound.apply_defaults()
    return {**{name: value for name, value in bound.arguments.items() if name != "self"}, **kwargs}


@contextlib.contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = search


def _leaves(structure: Any) -> Iterator[Any]:
    if isinstance(structure, Mapping):
        structure = tuple(structure.values())
    if isinstance(structure, tuple | list):
        for part in structure:
            yield from _leaves(part)
    elif hasattr(structure, "shape"):
        yield structure


def _tells_shapes(element_spec: Any) -> bool:
    return all(leaf.shape.rank and None not in tuple(leaf.shape)[1:] for leaf in _leaves(element_spec))


def _size_of_first(data: Any) -> int | None:
    """The batch size of data that comes in batches, such as a `keras.utils.PyDataset`."""
    if data is None or hasattr(data, "shape") or isinstance(data, tuple | list | Mapping):
        return None
    if not hasattr(data, "__getitem__"):
        return None
    first = next(_leaves(first_batch(data)), None)
    return None if first is None else int(first.shape[0])
