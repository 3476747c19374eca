"""What a rule looks at: a pipeline's stages and the memory there is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memfit.compat.tf_datasets import PYTHON_OPS
from memfit.data.linting.stages import Stage
from memfit.sizes import Size

DECODERS = {
    *("DecodeJpeg", "DecodeAndCropJpeg", "DecodePng", "DecodeGif", "DecodeBmp", "DecodeWebP", "DecodeImage")
}
RESIZERS = {"ResizeBilinear", "ResizeArea", "ResizeBicubic", "ResizeNearestNeighbor", "ScaleAndTranslate"}


@dataclass(frozen=True)
class View:
    """One pipeline as the rules see it.

    Attributes:
        stages: All stages, from the source on.
        host: The host's memory in bytes.
        batch_memory: The bytes of one batch at the end, where the graph does not say; or None.
        options: The dataset's `tf.data.Options`.
        workers: The number of workers that will share the dataset.
        idle_conversions: The map functions in which `convert_image_dtype` changes nothing.
        source_bytes: The bytes of the tensors that its sources hold. Where they are too large to be written into a
            graph, there are no stages.
        behind_device_copy: The names of the stages behind a copy to a device, which `stages` end before; None where
            there is no such copy.
        caches_of_others: The cache files of other datasets.
    """

    stages: list[Stage]
    host: int
    batch_memory: int | None
    options: Any
    workers: int
    idle_conversions: set[str]
    source_bytes: int = 0
    behind_device_copy: tuple[str, ...] | None = None
    caches_of_others: frozenset[str] = frozenset()

    def of_kind(self, *kinds: str) -> Iterator[Stage]:
        """The stages of these kinds, from the source on."""
        return (stage for stage in self.stages if stage.kind in kinds)

    def after(self, stage: Stage) -> list[Stage]:
        """The stages behind a stage."""
        return [later for later in self.stages if any(earlier is stage for earlier in later.upstream())]

    @property
    def batched(self) -> bool:
        """Whether it makes batches, as a pipeline for training does."""
        return any(True for _ in self.of_kind("batch"))

    def element_bytes(self, stage: Stage) -> int | None:
        """The bytes of a stage's element; where its shape is unknown, from the given size of a batch.

        An element before the batching is a part of the batch.
        """
        known = stage.bytes_with(batch_size_at(stage))
        if known is not None or self.batch_memory is None:
            return known
        for later in self.after(stage):
            if later.kind == "batch" and later.numbers and later.numbers[0] > 0:
                return self.batch_memory // later.numbers[0]
        return self.batch_memory


def batch_size_at(stage: Stage) -> int | None:
    """The most samples that an element has: the last batch may be smaller, so graphs leave it open."""
    for earlier in (stage, *stage.upstream()):
        if earlier.kind == "unbatch":
            return None
        if earlier.kind == "batch" and earlier.numbers and earlier.numbers[0] > 0:
            return earlier.numbers[0]
    return None


def decodes(stage: Stage) -> bool:
    """Whether the stage turns files into pixels."""
    return bool(DECODERS & stage.ops())


def decoded_before(stage: Stage) -> bool:
    """Whether what comes into the stage are decoded images."""
    return any(decodes(earlier) for earlier in stage.upstream())


def foreign_python(stage: Stage) -> bool:
    """Whether the stage calls Python code, other than memfit's own, which keeps shapes and works on batches."""
    return any(node.op in PYTHON_OPS and "memfit/" not in node.name for node in stage.nodes)


def times(count: float | None, size: int | None, of: str = "elements") -> str:
    """Says how many bytes some elements take, as far as it is known."""
    number = f"{count:,.0f} {of}" if count is not None else f"an unknown number of {of}"
    if size is None:
        return f"{number} of unknown size"
    if count is None:
        return f"{number} of {Size(size)}"
    return f"{Size(int(count * size))}: {number} of {Size(size)}"
