"""Giving memory back: what clearing can really do, measured, and what only the end of the process can."""

import gc
import importlib
import math
import sys
from dataclasses import dataclass
from typing import Any

import psutil

from memfit.budgets.budget import Count, read_count
from memfit.budgets.holders import Search
from memfit.compat.tf_graphs import forget_gradients_of_dead_graphs
from memfit.compat.tf_runtime import is_initialised
from memfit.errors import InvalidInput
from memfit.showing import Shown
from memfit.sizes import Size, to_plain
from memfit.tables import table


@dataclass(frozen=True)
class Held:
    """A model that is still there.

    Attributes:
        model: Its name.
        size: Bytes of its weights and its optimizer's state.
        by: What holds it, each as a sentence.
    """

    model: str
    size: Size
    by: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Release(Shown):
    """What `release` did, in measured bytes.

    Attributes:
        device: The device whose allocator was asked, such as "GPU:0"; None where TensorFlow is not running.
        device_before: Bytes of live tensors on it before.
        device_after: Bytes of live tensors on it after.
        device_kept: Bytes the allocator has taken at its peak and holds free now: TensorFlow uses them again, but
            other programs get them only when this process ends.
        host_before: Resident host memory of this process before.
        host_after: Resident host memory of this process after.
        held: The models that are still there, with what holds each.
        searched_all: Whether there was time to look everywhere for what holds them.
    """

    device: str | None
    device_before: Size
    device_after: Size
    device_kept: Size
    host_before: Size
    host_after: Size
    held: tuple[Held, ...] = ()
    searched_all: bool = True

    def __repr__(self) -> str:
        rows: list[list[object]] = [["host (resident)", self.host_before, self.host_after, "the rest of it"]]
        if self.device is not None:
            kept = f"{self.device_kept} (peak, held for reuse)"
            rows.insert(0, [f"{self.device} (tensors)", self.device_before, self.device_after, kept])
        head = ["memory", "before", "after", "only ending the process returns"]
        parts = [table(rows, head=head, right=[1, 2])]
        for held in self.held:
            parts += ["", f"`{held.model}` ({held.size} of weights and optimizer state) is held by"]
            parts += [f"- {holder}" for holder in held.by or ("nothing that memfit can name",)]
        if not self.searched_all:
            parts += ["", "There may be more: the search stopped at its time limit."]
        return "\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as plain data, sizes in bytes."""
        return to_plain(self)


def release(model: Any = None) -> Release:
    """Clears the Keras session and Python's garbage, and says what that returned and what holds the rest.

    Tensors that a variable of yours still names stay, and so do models: the report names the variables, closures,
    histories, notebook outputs and errors that hold each of them. Delete those and call this again. A model that
    was trained in graph mode is then really gone, which `del`, `clear_session` and `gc.collect` alone do not
    achieve: TensorFlow's table of custom gradients holds the weights of every model it has traced. What the
    allocator once took from the device stays with the process for reuse; to have that back for others, run the
    training through `memfit.isolated` or `memfit.trials`.

    Args:
        model: The model to look for; None for all that there are.

    Returns:
        Measured bytes before and after, and what holds models, as text: the report keeps nothing alive.

    Raises:
        InvalidInput: If `model` is not a Keras model.
    """
    if model is not None and not _is_model(model):
        raise InvalidInput("memfit.release takes a Keras model", received=type(model).__name__)
    device = None
    if is_initialised():
        device = "GPU:0" if sys.modules["tensorflow"].config.list_physical_devices("GPU") else "CPU:0"
    host_before, before = _resident(), _count(device).current
    if "keras" in sys.modules:
        importlib.import_module("keras").backend.clear_session()
    forget_gradients_of_dead_graphs()
    gc.collect()
    after, peak = _count(device)
    held, complete = _find_held(model)
    return Release(
        device, before, after, Size(max(peak - after, 0)), host_before, _resident(), held, complete
    )


def _is_model(value: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and issubclass(type(value), keras.Model)


def _find_held(model: Any) -> tuple[tuple[Held, ...], bool]:
    """The models that are there, the largest first, and whether all that holds them was looked for."""
    models = [value for value in gc.get_objects() if _is_model(value)] if model is None else [model]
    search = Search({id(value): value.name for value in models})
    if models:
        search.run()
    held: list[tuple[set[int], Held]] = []
    # Those with a holder first: a model inside of another one, as Keras makes one for every `Sequential`, is there
    # because that one is.
    for value in sorted(models, key=lambda one: (id(one) not in search.sentences, -len(one.variables))):
        by, own = tuple(search.sentences.get(id(value), ())), {id(variable) for variable in value.variables}
        if by or not any(own <= other for other, _ in held):
            held.append((own, Held(value.name, _weigh(value), by)))
    told = sorted((one for _, one in held), key=lambda one: (-one.size, one.model))
    return tuple(told), search.complete


def _weigh(model: Any) -> Size:
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(() if optimizer is None else optimizer.variables)]
    unique = {id(variable): variable for variable in variables}.values()
    return Size(sum(math.prod(variable.shape) * _bytes_of(variable.dtype) for variable in unique))


def _bytes_of(dtype: str) -> int:
    return int(sys.modules["tensorflow"].as_dtype(dtype).size) if "tensorflow" in sys.modules else 4


def _count(device: str | None) -> Count:
    count = None if device is None else read_count(device)
    return count or Count(Size(0), Size(0))


def _resident() -> Size:
    return Size(psutil.Process().memory_info().rss)
