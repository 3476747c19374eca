"""Recordings that can be worked out by hand: what a step takes is a line in the batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from memfit import InvalidInput, Size
from memfit.estimation.waiting import Waiting
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.recordings import Recordings
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import Segments

BYTES_WAIT = Waiting(sample=1)


@dataclass(frozen=True)
class Line:
    """Stands in for an estimate: a fixed part, a part for each sample, and a margin."""

    fixed: int
    each: float
    batch_size: int = 8
    margin: float = 0.0
    limit: int | None = None  # under which it fits, whatever the margin says
    compiled: bool = False
    step_time: float | None = None
    waiting: Waiting = BYTES_WAIT
    left_by_parts: float = 0.0  # per sample, until the update
    whole: int = 0

    def within(self, whole: int) -> Any:
        return replace(self, whole=whole)

    def sketch(self, batch_size: int) -> Any:
        return replace(self, batch_size=batch_size)

    at = sketch

    def speaks_for(self, batch_size: int) -> bool:
        return self.compiled or self.batch_size / 2 <= batch_size <= 2 * self.batch_size

    @property
    def prediction(self) -> Any:
        return self

    def needs_at_most(self, memory: int) -> bool:
        if self.limit is not None:
            return self.peak <= self.limit <= memory
        return self.needed <= memory

    def peak_in(self, memory: int) -> int:
        return self.peak

    @property
    def peak(self) -> int:
        left = self.left_by_parts * max(self.whole, self.batch_size)
        return int(self.fixed + self.each * self.batch_size + left)

    @property
    def needed(self) -> int:
        return int(self.peak * (1 + self.margin))

    @property
    def breakdown(self) -> Mapping[str, int]:
        return {"activations": int(self.each * self.batch_size), "weights": 0, "optimizer state": 0}

    def top(self, count: int) -> list[Any]:
        return []

    def course(self) -> Any:
        raise InvalidInput("A line has no course")

    @property
    def source(self) -> str:
        return "worked out by hand"

    @property
    def made_from(self) -> Any:
        return self

    fixed_batch: ClassVar[None] = None

    def fixed_part(self, batch: int) -> float:
        """A step takes as long as its samples and a third of one."""
        return 0.32 / batch


def segments(activation_bytes: int, recomputed: float) -> Segments:
    """A choice of segments for a batch of 64, of which stock keeps 640 bytes."""
    return Segments(64, (str(recomputed),), (), Size(640), Size(activation_bytes), recomputed)


def network(*, normalised: bool = True) -> keras.Model:
    """A network of one weight, whose micro-batches are near because it is normalised, or exact."""
    layers = [keras.layers.BatchNormalization()] if normalised else []
    model = keras.Sequential(
        [keras.Input((1,), dtype="uint8"), *layers, keras.layers.Dense(1, use_bias=False)]
    )
    model.compile("sgd", "mse", jit_compile=False)
    return model


def job_of(
    model: keras.Model,
    memory: int,
    allow: str = "near",
    *,
    batch_size: Any = 64,
    choices: tuple[Segments, ...] = (),
    on_host: bool = False,
) -> Job:
    """A job of a dataset (or of arrays, which may stay on the host) of a byte a sample, with these choices."""
    arrays = (np.zeros((0, 1), "uint8"), np.zeros((0, 0), "uint8"))
    data = arrays if on_host else tf.data.Dataset.from_tensor_slices(arrays).batch(2)
    job = Job(model, batch_size, Size(memory), Fidelity.read(allow), data)
    vars(job)["segment_choices"] = (choices, None if choices else "no choices")
    return job


def recordings_of(job: Job, lines: Mapping[Recipe, Line], recorded: list[Recipe] | None = None) -> Recordings:
    """The recordings of a job; every recipe recorded is noted."""

    def record(recipe: Recipe | None, batch_size: int) -> Any:
        recipe = recipe or Recipe()
        if recorded is not None:
            recorded.append(recipe)
        fed = replace(recipe, inputs_on_host=False)  # samples that are read take what given ones do
        return replace(lines.get(recipe) or lines[fed], batch_size=batch_size)

    recording: Callable[[Recipe | None, int], Any] = record
    return Recordings(job, recording)
