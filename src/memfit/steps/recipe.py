"""The recipe: how one training step is computed, as plain data."""

from dataclasses import dataclass

from memfit.steps.rematerialisation import Segments


@dataclass(frozen=True)
class Recipe:
    """How a step is computed; `Recipe()` is stock Keras's own step.

    Attributes:
        micro_batch: Samples at a time; None for the whole batch at once.
        segments: What is kept for the backward pass; None for everything.
        precision: A Keras dtype policy to train in, such as "mixed_bfloat16"; None for the model's own.
        inputs_on_host: Whether arrays stay on the host, and a step takes only the samples that it computes.
    """

    micro_batch: int | None = None
    segments: Segments | None = None
    precision: str | None = None
    inputs_on_host: bool = False

    @property
    def is_stock(self) -> bool:
        """Whether the step is stock Keras's own."""
        return self == Recipe()

    def __str__(self) -> str:
        size = "whole batches" if self.micro_batch is None else f"micro-batches of {self.micro_batch}"
        if self.segments is None:
            return size
        return f"{size}, rematerialised in {len(self.segments.starts) + 1} segments"
