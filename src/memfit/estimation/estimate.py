"""The prediction a person reads: the peak of a phase at a batch size, what it is made of, and what it needs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from memfit.budgets.gpu_table import GPU
from memfit.errors import InvalidInput, check_count
from memfit.estimation.fit import Fit
from memfit.estimation.source import LARGEST_BATCH, Prediction, Source, Tensor, Unknown
from memfit.estimation.waiting import NOTHING_WAITS, Waiting
from memfit.estimation.worst_batch import WorstBatch
from memfit.showing import Shown
from memfit.sizes import Size, plain
from memfit.tables import table

# A recording made for a batch holds its half too, and speaks for what is between its half and its double: a Conv3D
# took twice as much at 32 as at 16.
_FAR = 2


def check_batch(fixed: int | None, batch_size: Any) -> None:
    """Refuses what is no batch size, or not the only one that a model allows."""
    check_count("A batch has at least one sample", batch_size, "Give a whole number")
    if fixed is not None and batch_size != fixed:
        raise InvalidInput(
            f"The inputs or the code of this model allow only batches of {fixed}",
            received=batch_size,
            remedy="Ask about that batch, or leave it open: keras.Input(shape=...), tf.shape(x)[0]",
        )


@dataclass(frozen=True, repr=False)
class Estimate(Shown):
    """The predicted peak memory of one phase at one batch size.

    Attributes:
        batch_size: Samples in a step.
        phase: "train", "validate" or "predict".
        made_from: What the figures come from.
        others: Gives the estimate of another phase.
        nearby: Gives the estimate of any batch size from a recording that is not far from it.
        sketched: Whether the figures come from what is known already, without another compilation.
        waiting: What the input pipeline holds in the same memory; nothing on a GPU.
        worst: Which batch it is for, where the shapes of the data vary, and how that was found; otherwise None.
    """

    batch_size: int
    phase: str
    made_from: Source = field(compare=False)
    others: Callable[[str], "Estimate"] | None = field(default=None, compare=False)
    nearby: Callable[[int], "Estimate"] | None = field(default=None, compare=False)
    sketched: bool = False
    waiting: Waiting = NOTHING_WAITS
    worst: WorstBatch | None = None

    @property
    def source(self) -> str:
        """Where the figures come from, as a sentence."""
        return self.made_from.text

    @property
    def device(self) -> GPU | None:
        """The GPU that is asked about; None for this machine's arena."""
        return self.made_from.device

    @property
    def compiled(self) -> bool:
        """Whether a GPU's compiler gave the figures, which takes seconds to minutes for a further batch size."""
        return self.made_from.compiled

    @cached_property
    def prediction(self) -> Prediction:
        """The source's figures at this batch size."""
        return (self.made_from.sketch if self.sketched else self.made_from.at)(self.batch_size)

    @property
    def peak(self) -> Size:
        """The largest peak to expect in five steps: what TensorFlow would report as peak bytes in use."""
        return self.prediction.peak

    @property
    def spread(self) -> tuple[Size, Size]:
        """The lowest and the highest peak of a step: threads run ops in another order in every step."""
        return self.prediction.spread

    @property
    def needed(self) -> Size:
        """The memory to run it in: peak, margin, and what waits. `fits` says yes to this much and to more."""
        return Size(self.prediction.needed + self.waiting.at(self.batch_size))

    @property
    def margin(self) -> float:
        """How much more than its peak a step needs, as a part of the peak."""
        return self.prediction.needed / self.peak - 1

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """What is needed beyond the peak, each with where its figure comes from."""
        waiting = Size(self.waiting.at(self.batch_size))
        source = "batches that wait, and fit's copy of the arrays or what a pipeline's stages hold"
        return (
            *self.prediction.unknown,
            *([Unknown("input pipeline", waiting, source)] if waiting else []),
        )

    @property
    def breakdown(self) -> Mapping[str, Size]:
        """Bytes by kind at the peak; they add up to it."""
        return self.prediction.breakdown

    @property
    def step_time(self) -> float | None:
        """The least seconds of a step (predicted), from the kernels of a GPU's compiler; None for a recording."""
        return self.prediction.step_time

    def top(self, count: int = 10) -> tuple[Tensor, ...]:
        """Returns the largest tensors that are alive at the peak."""
        return self.prediction.top(count)

    def at(self, batch_size: int) -> "Estimate":
        """Returns the estimate at another batch size: replayed, or compiled for the GPU.

        Beyond twice and below half of what was asked about, the step is recorded anew, which takes seconds: kernels
        may take other ways for large batches.
        """
        check_batch(self.made_from.fixed_batch, batch_size)
        base = self if self.nearby is None else self.nearby(batch_size)
        return replace(base, batch_size=batch_size, sketched=False, worst=self.worst)

    def within(self, whole: int) -> "Estimate":
        """Returns the estimate of a recorded step in micro-batches as a part of a larger batch."""
        return replace(self, made_from=self.made_from.within(whole), nearby=None)

    def speaks_for(self, batch_size: int) -> bool:
        """Whether its figures hold for a batch size without another recording; a compiler is asked about each."""
        return self.compiled or self.batch_size / _FAR <= batch_size <= _FAR * self.batch_size

    def sketch(self, batch_size: int) -> "Estimate":
        """Returns the estimate at another batch size in milliseconds, to rank many of them.

        A recording is replayed, as by `at`. A compiler's figures lie on lines through what was compiled before.
        """
        return replace(self, batch_size=batch_size, sketched=True)

    def fits(self, memory: int | str, batch_size: int | None = None) -> Fit:
        """Answers whether the phase fits into `memory`, with its margin and what waits; a yes is true in an `if`.

        Args:
            memory: What there is, in bytes or as text such as "8GiB".
            batch_size: Samples in a step; the estimate's own unless told.
        """
        size = Size(memory)
        asked = self if batch_size is None else self.at(batch_size)
        step = Size(max(0, size - self.waiting.at(asked.batch_size)))
        return Fit(asked.prediction.needs_at_most(step), size, asked.peak, lambda: asked.needed)

    def peak_in(self, memory: int | str) -> Size:
        """Returns the peak where there is only so much, with gaps that are used too; `peak` if it does not fit."""
        return self.prediction.peak_in(Size(memory))

    def max_batch(self, memory: int | str) -> int:
        """Returns the largest batch size that fits into `memory` with its margin, 0 if none does."""
        memory = Size(memory)
        guess = self.made_from.max_batch(memory, self.batch_size)
        if self.nearby is None or self.made_from.fixed_batch is not None:
            return guess
        # Other recordings may not agree with the guess: find a batch that fits, followed by one that does not.
        fits, too_large = 0, None
        while fits < LARGEST_BATCH and (too_large is None or too_large - fits > 1):
            if not fits < guess < (too_large or math.inf):
                guess = fits + 1 if too_large is None else (fits + too_large) // 2
            near = self.nearby(guess)
            if near.fits(memory, guess):
                fits = guess
            else:
                too_large = guess
            guess = near.made_from.max_batch(Size(max(0, memory - self.waiting.at(guess))), guess)
        return fits

    @property
    def validate(self) -> "Estimate":
        """The estimate of a validation step at the same batch size."""
        return self._other("validate")

    @property
    def predict(self) -> "Estimate":
        """The estimate of a prediction step at the same batch size."""
        return self._other("predict")

    def _describe_waiting(self) -> list[str]:
        waiting = self.waiting.at(self.batch_size)
        if not waiting:
            return []
        return [f"fit holds {Size(waiting)} in its input pipeline as well: {self.needed} in total"]

    def _other(self, phase: str) -> "Estimate":
        if self.others is None:
            raise InvalidInput(
                "Only an estimate of training has `validate` and `predict`", received=self.phase
            )
        return replace(self.others(phase), batch_size=self.batch_size)

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as plain data."""
        told = {
            "phase": self.phase,
            "batch_size": self.batch_size,
            "source": self.source,
            "device": None if self.device is None else self.device.name,
            "peak": self.peak,
            "spread": self.spread,
            "needed": self.needed,
            "margin": round(self.margin, 4),
            "waiting": self.waiting.at(self.batch_size),
            "unknown": {part.name: {"bytes": part.bytes, "source": part.source} for part in self.unknown},
            "step_time": self.step_time,
            "worst_batch": self.worst,
            "breakdown": self.breakdown,
            "top": [
                {"bytes": t.bytes, "kind": t.kind, "layer": t.layer, "op": t.op, "shape": t.shape}
                for t in self.top()
            ],
            **self.prediction.facts(),
        }
        return plain(told)

    def __repr__(self) -> str:
        where = "" if self.device is None else f", {self.device.name}"
        peak = f"peak {self.peak} ({self.prediction.told_by})"
        rows = [[kind, size, f"{size / self.peak:.0%}"] for kind, size in self.breakdown.items() if size]
        largest = [[t.bytes, t.kind, t.layer or t.op or t.shape] for t in self.top(5)]
        return "\n".join(
            [
                f"Estimate: {self.phase}, batch {self.batch_size}{where}: {peak}",
                "",
                table([*rows, ["total", self.peak, "100%"]], right=[1, 2]),
                "",
                *self.prediction.remarks,
                *self._describe_waiting(),
                *([] if self.worst is None else [str(self.worst)]),
                f"source: {self.source}",
                "",
                "largest tensors at the peak",
                table(largest, right=[0]),
            ]
        )
