"""The worst batch of data whose batches have several shapes: found by a look through the data, then estimated."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from memfit.compat import keras_data
from memfit.compat.tf_datasets import dataset_batch_size
from memfit.data.looking import look_at_shapes
from memfit.data.peeking import is_generator
from memfit.data.shapes import BatchShape, Shapes, count_samples
from memfit.errors import CannotTell, InvalidInput
from memfit.estimation.recording.specs import spec_of
from memfit.sizes import to_plain

# Where shapes are larger than one another only in some dimensions, so many of them are estimated.
_ESTIMATED = 4
Peaked = TypeVar("Peaked")


@dataclass(frozen=True)
class WorstBatch:
    """The batch that takes most.

    Attributes:
        index: Which batch it is, counted from 0; its first one, where several have its shape.
        shape: The shape of each of its tensors.
        count: How many batches have this shape.
        look: How it was found, as a sentence.
        total: How many batches there are; None where that is not known.
    """

    index: int
    shape: BatchShape
    count: int
    look: str
    total: int | None = None

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total:,}"
        alike = f" (and {self.count - 1:,} more like it)" if self.count > 1 else ""
        return f"worst batch: {self.index:,}{of}{alike}, {', '.join(map(str, self.shape))}; {self.look}"

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return to_plain(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "WorstBatch":
        """Reads what `to_json` returned."""
        return cls(**{**data, "shape": tuple(map(tuple, data["shape"]))})


def look_where_needed(
    model: Any, data: Any, batch_size: int | str | None = None, *, careful: bool = False
) -> Shapes | None:
    """Looks through data that comes in batches where neither it nor the model says their shapes; otherwise None.

    Args:
        careful: Whether the data is trained with afterwards, and must not notice the look.

    Raises:
        CannotTell: If the data cannot be looked at.
    """
    if isinstance(data, Shapes):
        return data
    if is_generator(data):
        look_at_shapes(data)  # which says why not
    if not gives_batches(data):
        return None
    if keras_data.is_dataset(data):
        unsized = batch_size is None and dataset_batch_size(data) is None
        if not unsized and (_says_shapes(model) or _tells_shapes(model, data)):
            return None
    elif not leaves_open(model):
        return None
    shapes = look_at_shapes(data, careful=careful)
    if not shapes.seen:
        raise InvalidInput("The data must have at least one batch", received="no batch")
    return shapes


def gives_batches(data: Any) -> bool:
    """Whether data gives batches that can be looked at: a dataset, or a `PyDataset`."""
    import keras

    return isinstance(data, keras.utils.PyDataset) or (data is not None and keras_data.is_dataset(data))


def leaves_open(model: Any) -> bool:
    """Whether a model's inputs leave dimensions open beside the batch."""
    inputs = getattr(model, "inputs", None) or []
    return any(size is None for tensor in inputs for size in tensor.shape[1:])


def _says_shapes(model: Any) -> bool:
    """Whether all batches of a model have one shape, but for their samples."""
    return bool(getattr(model, "inputs", None)) and not leaves_open(model)


def batch_size_of(data: Any, batch_size: int | None) -> int:
    """Returns the samples in a step: what is given, or what the data itself yields.

    Raises:
        InvalidInput: If only the user knows it.
    """
    if batch_size is not None:
        return batch_size
    known = None
    if data is not None and gives_batches(data):
        known = dataset_batch_size(data) if keras_data.is_dataset(data) else count_samples(data[0])
    if known is None:
        raise InvalidInput(
            "`batch_size` can be left out only where the data comes in batches", remedy="Pass batch_size="
        )
    return known


def find_worst(
    shapes: Shapes, measure: Callable[[BatchShape], Peaked], peak: Callable[[Peaked], int]
) -> tuple[WorstBatch, Peaked]:
    """Returns the worst batch, and what was measured of it.

    Args:
        measure: Estimates a shape.
        peak: The peak of what it returns.
    """
    largest = shapes.largest()
    measured = [(shape, measure(shape)) for shape in largest[:_ESTIMATED]]
    shape, most = max(measured, key=lambda pair: peak(pair[1]))
    look = shapes.look
    if len(largest) > _ESTIMATED:
        look += f"; of {len(largest)} shapes none covers another, and the {_ESTIMATED} largest were compared"
    seen = shapes.seen[shape]
    return WorstBatch(seen.first, shape, seen.count, look, shapes.total), most


def estimate_worst(shapes: Shapes, estimate: Callable[[Any, int], Any], batch_size: int | None = None) -> Any:
    """Returns the estimate of the worst batch.

    Args:
        estimate: Estimates an example at a batch size.
        batch_size: Samples in a step, where they are to be others than the data's.
    """

    def of_shape(shape: BatchShape) -> Any:
        return estimate(shapes.like(shape), batch_size or shape[0][0])

    worst, made = find_worst(shapes, of_shape, lambda estimated: int(estimated.peak))
    return replace(made, worst=worst if shapes.vary else None)


def _tells_shapes(model: Any, data: Any) -> bool:
    try:
        spec_of(model, data)
    except CannotTell:
        return False
    return True
