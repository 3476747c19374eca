"""The next tighter way to compute a step: the least change that what is known of the shortage asks for."""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.planning.levers import micro_batches
from memfit.planning.plan import Plan
from memfit.sizes import Size
from memfit.steps.micro_batches.additivity import agree, has_to_be_checked, losses_whole_and_in_parts
from memfit.steps.rematerialisation import Segments, find_choices

# Of what is free, the part that a step is chosen for: the allocator rounds, and fragments are lost.
_OF_FREE = 0.9
# Where nobody knows what the step takes, this much of it is tried next: every miss costs TensorFlow's 10 s.
_BLINDLY = 0.5


@dataclass(frozen=True)
class Settings:
    """How a step is computed.

    Attributes:
        micro_batch: Samples at a time; None for the whole batch at once.
        segments: What is kept for the backward pass; None for everything.
    """

    micro_batch: int | None = None
    segments: Segments | None = None

    @classmethod
    def of(cls, plan: Plan | None) -> "Settings":
        """The settings of a plan; those of stock Keras where there is none."""
        return cls() if plan is None else cls(plan.micro_batch, plan.segments)

    def __str__(self) -> str:
        size = "whole batches" if self.micro_batch is None else f"micro-batches of {self.micro_batch}"
        if self.segments is None:
            return size
        return f"{size}, rematerialised in {len(self.segments.starts) + 1} segments"


class Tightening:
    """The way down for one model: as exact as allowed, from what is fast to what is small.

    Args:
        model: A compiled model.
        allow: The farthest that a change may go.
    """

    def __init__(self, model: keras.Model, allow: Fidelity) -> None:
        self._model, self._allow = model, allow
        self._fidelity, self._reason = micro_batches.fidelity(model)
        self._checked = not has_to_be_checked(model)
        self._fronts: tuple[Segments, ...] | None = None

    def tighter(
        self, settings: Settings, data: Any, need: int | None, free: int | None
    ) -> tuple[Settings, str] | None:
        """Returns the next settings and what is to be said of them; None where there are none.

        Args:
            settings: Those that ran out of memory.
            data: The batch that did not fit.
            need: What a step with these settings was seen to take, or None.
            free: What is free, or None.
        """
        x = keras.utils.unpack_x_y_sample_weight(data)[0]
        samples = int(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None).shape[0])
        known = need is not None and free is not None and free < need
        part = _OF_FREE * free / need if known else _BLINDLY  # type: ignore[operator]
        self._check_losses(data)
        exact = self._fidelity == Fidelity.EXACT
        cuts = self._smaller(settings, samples, part) if exact or self._allow >= self._fidelity else None
        if exact and cuts is not None:
            return cuts, ""
        kept = self._fewer(settings, x, samples, part)
        if kept is not None:
            return kept, ""
        return None if cuts is None else (cuts, f" ({self._fidelity}, not exact: {self._reason})")

    def needed(self, settings: Settings, lack: str, need: int | None, free: int | None) -> str:
        """Says what would help where there is nothing tighter."""
        parts = [f"Not even a step in {settings} fits: {lack}."]
        if need is not None:
            parts.append(f"Such a step was seen to take {Size(need)}.")
        if free is not None:
            parts.append(f"Free now: {Size(free)}.")
        parts.append("The model is as it was before this batch.")
        if self._allow < self._fidelity and micro_batches.why_not(self._model) is None:
            parts.append(f'With allow="{self._fidelity}" it could go on in micro-batches ({self._reason}).')
        parts.append("Free memory that other programs or tensors hold, or give more.")
        return " ".join(parts)

    def _check_losses(self, data: Any) -> None:
        """Looks, once, whether a loss that somebody wrote adds up from parts of a batch."""
        if self._checked or micro_batches.why_not(self._model) is not None:
            return
        self._checked = True
        losses = losses_whole_and_in_parts(self._model, data)
        if losses is None or not agree(*losses):
            self._fidelity = Fidelity.NEAR
            self._reason = "the loss of a batch is not known to add up from its parts"

    def _smaller(self, settings: Settings, samples: int, part: float) -> Settings | None:
        """The largest micro-batches that are at most so small a part of the present ones."""
        if micro_batches.why_not(self._model) is not None:
            return None
        now = min(settings.micro_batch or samples, samples)
        sizes = [
            size for size in micro_batches.sizes(samples, micro_batches.least(self._model)) if size < now
        ]
        if not sizes:
            return None
        fitting = [size for size in sizes if size <= part * now]
        return Settings(fitting[0] if fitting else sizes[-1], settings.segments)

    def _fewer(self, settings: Settings, x: Any, samples: int, part: float) -> Settings | None:
        """The least recomputation that keeps at most so small a part of the present activations."""
        fronts = self._choices(x, samples)
        if not fronts:
            return None
        segments = settings.segments
        share = 1.0 if segments is None else segments.activation_bytes / segments.stock_bytes
        shares = [(choice, choice.activation_bytes / choice.stock_bytes) for choice in fronts]
        below = [(choice, other) for choice, other in shares if other < 0.95 * share]
        if not below:
            return None
        fitting = [choice for choice, other in below if other <= part * share]
        return Settings(settings.micro_batch, fitting[0] if fitting else below[-1][0])

    def _choices(self, x: Any, samples: int) -> tuple[Segments, ...]:
        if self._fronts is None:
            self._fronts = ()
            if micro_batches.custom_step(self._model) is None and not self._model.run_eagerly:
                specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), x)
                try:
                    self._fronts = find_choices(
                        self._model, samples, None if getattr(self._model, "inputs", None) else specs
                    )
                except InvalidInput:  # this network cannot be cut
                    self._fronts = ()
        return self._fronts
