"""A step that reads its samples from the host, as it is recorded: it takes numbers where recorders have batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.data.shapes import count_samples, leaves_of
from memfit.estimation.recording.batches import misaligned
from memfit.estimation.recording.specs import Batch, Spec, TensorSpecs, mapped
from memfit.estimation.recording.step import Traced
from memfit.steps.host_arrays import HostArrays
from memfit.steps.recipe import Recipe
from memfit.steps.train_step import build


class HostFed:
    """Runs a step on the samples of a batch, which it reads as it reads those of a user's arrays in `fit`.

    Args:
        model: The copy that is recorded.
        recipe: How the step is computed.
        spec: What a batch looks like.
        parts: In how many micro-batches a batch is cut.
        any_batch: Whether it is traced for batches of any size.
    """

    is_given_samples = False

    def __init__(self, model: Any, recipe: Recipe, spec: Spec, parts: int, any_batch: bool) -> None:
        self._host = HostArrays(spec.batch(1))
        self._step = build(model, recipe, self._host, parts=parts)
        self.parts, self.any_batch = self._step.parts, any_batch

    def trace(self, spec: TensorSpecs) -> Traced | None:
        """Traces it for as many samples as the spec of a batch has."""
        return self._step.trace(_spec_of_numbers(spec))

    def run(self, data: Batch, spec: TensorSpecs) -> Any:
        """Runs it on all samples of a batch."""
        with self._host.holding(mapped(_Rows, data)):
            return self._step.run((np.arange(count_samples(data)),), _spec_of_numbers(spec))

    def variables(self) -> Sequence[tf.Variable]:
        """The variables that the step keeps."""
        return self._step.variables()


class _Rows:
    """An array whose rows TensorFlow has to copy, however few they are."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __getitem__(self, wanted: Any) -> Any:
        return misaligned(self._array[wanted])


def _spec_of_numbers(spec: TensorSpecs) -> TensorSpecs:
    return (tf.TensorSpec([leaves_of(spec)[0].shape[0]], tf.int64),)
