"""The predicted peaks of variants: recorded while the time lasts, and from their shapes afterwards."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from memfit.budgets.gpu_table import GPU
from memfit.errors import MemfitError, in_one_line
from memfit.estimation.estimate import Estimate
from memfit.estimation.recorder import Recorder
from memfit.estimation.source import LARGEST_BATCH
from memfit.sizes import Size
from memfit.slimming.shapes import Shapes

RECORDED, FROM_SHAPES = "a recorded step", "layer shapes, beside the recorded original"


@dataclass(frozen=True, eq=False)
class Recorded:
    """The recording of a model's step, or why there is none.

    Attributes:
        training: The estimate of a training step.
        inference: That of a prediction; None where the time was up.
        failure: Why there is no recording; empty where the time was up before it began.
    """

    training: Estimate | None = None
    inference: Estimate | None = None
    failure: str = ""


class Recordings:
    """Records steps, several at a time, as long as the time lasts; the first is recorded in any case.

    Args:
        batch_size: Samples in a step.
        device: A GPU to ask about, or None.
        seconds: After so long no recording is begun that would take longer.
    """

    def __init__(self, batch_size: int, device: GPU | None, seconds: float) -> None:
        self._batch_size, self._device = batch_size, device
        self._begin, self._seconds = time.monotonic(), seconds
        self._longest = 0.0
        # Packing a model raises the limit of recursion of the whole process for a while.
        self._packing = threading.Lock()

    @property
    def time_is_up(self) -> bool:
        """Whether another recording would take too long."""
        return time.monotonic() - self._begin + self._longest > self._seconds

    def record(self, model: Any, data: Any, *, first: bool = False) -> Recorded:
        """Records the training step of a model, and if there is time a prediction."""
        if self.time_is_up and not first:
            return Recorded()
        begin = time.monotonic()
        try:
            with ExitStack() as stack:
                recorder = Recorder(model, data, self._device)
                with self._packing:
                    stack.enter_context(recorder)
                training = recorder.estimate(self._batch_size)
                _ = training.peak
                self._longest = max(self._longest, time.monotonic() - begin)
                inference = None if self.time_is_up else training.predict
                if inference is not None:
                    _ = inference.peak
            return Recorded(training, inference)
        except MemfitError as error:
            if first:
                raise
            return Recorded(failure=in_one_line(error))


@dataclass(frozen=True, eq=False)
class Peaks:
    """The predicted peak of a training step at any batch size.

    Attributes:
        at: Gives it.
        source: What it is predicted from.
        margin: What is needed beyond it, as a part of it.
    """

    at: Callable[[int], int]
    source: str
    margin: float

    def needed(self, batch_size: int) -> Size:
        """The memory to run it in."""
        return Size(int(self.at(batch_size) * (1 + self.margin)))

    def largest_batch(self, memory: Size) -> int:
        """The largest batch size that fits, 0 for none."""
        fits, too_large = 0, 1
        while too_large <= LARGEST_BATCH and self.needed(too_large) <= memory:
            fits, too_large = too_large, 2 * too_large
        while too_large - fits > 1:
            middle = (fits + too_large) // 2
            fits, too_large = (middle, too_large) if self.needed(middle) <= memory else (fits, middle)
        return fits


def scale(parts: Mapping[str, int], shapes: Shapes, before: Shapes) -> int:
    """Returns the peak of a variant, from the parts of the original's peak and the shapes of both.

    Gradients and the optimizer's state go with the trained weights, activations and workspace with the layers'
    outputs, and what the allocator rounds with all of them.
    """
    trained = shapes.trained / max(before.trained, 1)
    computed = (shapes.activations or 0) / (before.activations or 1)
    factors = {
        "weights": shapes.weights / max(before.weights, 1),
        "gradients": trained,
        "optimizer state": trained,
        "activations": computed,
        "workspace": computed,
        "inputs": (shapes.inputs or 0) / (before.inputs or 1),
    }
    known = {kind: size for kind, size in parts.items() if kind in factors}
    scaled = sum(size * factors[kind] for kind, size in known.items())
    return int(scaled * sum(parts.values()) / max(sum(known.values()), 1))


def step_seconds(estimate: Estimate) -> tuple[int, float] | None:
    """Returns the batch size and the CPU time of the step that was recorded, or None."""
    timed = getattr(estimate.made_from, "seconds", ())
    return timed[-1] if timed else None
