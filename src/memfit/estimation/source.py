"""Where an estimate's figures come from: a recording that is replayed, or a GPU's compiler."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from memfit.budgets.gpu_table import GPU
from memfit.sizes import Size

LARGEST_BATCH = 2**20  # what a search for the largest batch ends at


@dataclass(frozen=True)
class Tensor:
    """One tensor that is alive at the peak.

    Attributes:
        bytes: What it asks for.
        kind: One of `replay.naming.KINDS`.
        layer: The layer that asked, or "".
        op: The op that asked.
        shape: As text.
        born: Where in the step it begins, from 0.0 to 1.0; 0.0 for what was there before, or is not known.
        freed: Where it ends; 1.0 for what stays, or is not known.
    """

    bytes: Size
    kind: str
    layer: str
    op: str
    shape: str
    born: float = 0.0
    freed: float = 1.0


@dataclass(frozen=True)
class Unknown:
    """Memory that is needed beyond the peak: what for, how much, and where the figure comes from."""

    name: str
    bytes: Size
    source: str


@dataclass(frozen=True)
class Course:
    """The bytes in use during one step.

    Attributes:
        sums: Bytes by kind after every allocation and deallocation.
        top: Position of the peak.
        peak: Bytes in use there.
        layers: Bytes by layer there.
    """

    sums: Sequence[Mapping[str, Size]]
    top: int
    peak: Size
    layers: Counter[str]


class Prediction(Protocol):
    """The figures of a step at one batch size."""

    @property
    def peak(self) -> Size:
        """The predicted peak."""

    @property
    def spread(self) -> tuple[Size, Size]:
        """The lowest and the highest peak of a step."""

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """What is needed beyond the peak, by reason."""

    @property
    def needed(self) -> Size:
        """The memory to run it in."""

    @property
    def breakdown(self) -> Mapping[str, Size]:
        """Bytes by kind at the peak; they add up to it."""

    @property
    def step_time(self) -> float | None:
        """The least seconds of a step; None where that is not known."""

    @property
    def told_by(self) -> str:
        """In a word or two, what the peak is: "predicted", "compiled"."""

    @property
    def remarks(self) -> list[str]:
        """Lines for a person about what is needed."""

    def needs_at_most(self, memory: Size) -> bool:
        """Whether `needed` is not more than `memory`, without computing more of it than that takes."""

    def peak_in(self, memory: Size) -> Size:
        """The peak where there is no more memory than that."""

    def top(self, count: int) -> tuple[Tensor, ...]:
        """The largest tensors that are alive at the peak."""

    def course(self) -> Course:
        """The course of a step."""

    def facts(self) -> dict[str, Any]:
        """What only this kind of source has to say, as plain data."""


class Source(Protocol):
    """Predicts a phase of a training at any batch size."""

    @property
    def text(self) -> str:
        """Where the figures come from, as a sentence."""

    @property
    def device(self) -> GPU | None:
        """The GPU that is asked about; None for this machine's arena."""

    @property
    def compiled(self) -> bool:
        """Whether a GPU's compiler is asked, which takes seconds to minutes for a further batch size."""

    @property
    def fixed_batch(self) -> int | None:
        """The only batch size that the model allows; None for any."""

    @property
    def left_by_parts(self) -> float:
        """Bytes per sample that micro-batches leave until the update; 0 where that is not known."""

    def within(self, whole: int) -> "Source":
        """The same step in more micro-batches, of a batch of so many samples."""

    def at(self, batch: int) -> Prediction:
        """Predicts a batch size."""

    def sketch(self, batch: int) -> Prediction:
        """Predicts a batch size from what is known already."""

    def fixed_part(self, batch: int) -> float:
        """The part of the time of a step of a batch that does not depend on the batch."""

    def max_batch(self, memory: Size, start: int) -> int:
        """Finds the largest batch size that fits, with one that is known to begin with; 0 for none."""
