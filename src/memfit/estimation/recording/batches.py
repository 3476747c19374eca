"""The batches that are recorded: their sizes, and arrays that TensorFlow copies into its own memory."""

from typing import Any

from memfit.estimation.recording.specs import Batch, Spec, mapped

_FEW = 16


def ladder(largest: int, parts: int) -> tuple[int, ...]:
    """Returns the batch sizes that may be recorded, each twice the one before, for a step that cuts them in parts.

    A part is not of 1 sample unless it has to be: TensorFlow has ways of its own for dimensions of 1. All parts of
    a batch have the same size: what they take is a line in the batch.
    """
    sizes = [largest // parts]
    while sizes[0] >= 4:
        sizes.insert(0, sizes[0] // 2)
    return tuple(parts * size for size in (sizes if len(sizes) > 1 else [1, 2]))


def beyond(largest: int, parts: int) -> int | None:
    """Returns a larger batch size to look at where the largest recorded has parts of a few samples; otherwise None.

    A step of a few samples says little of one of many: kernels have ways of their own for them.
    """
    size = largest
    while size < _FEW * parts:
        size *= 2
    return size if size > largest else None


def batch_of(spec: Spec, size: int) -> Batch:
    """Returns a batch that TensorFlow copies into its own memory.

    It takes over an array without a copy where that happens to lie at a multiple of 64 bytes. Small arrays do
    so now and then; those of a large batch, which `malloc` maps page by page behind a head of 16 bytes, do not.
    """
    return mapped(misaligned, spec.batch(size))


def misaligned(array: Any) -> Any:
    """Returns a copy of an array that lies as a large one does, so that TensorFlow does not take it over."""
    import numpy as np

    if array.dtype.hasobject or array.dtype.kind == "U":
        return array
    buffer = np.empty(array.nbytes + 64, np.uint8)
    begin = (16 - buffer.ctypes.data) % 64
    copy = buffer[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
