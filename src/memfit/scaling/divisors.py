"""The divisors of a whole batch's losses, where masks or weights decide them: every rank counts its own share."""

from typing import Any

import keras
import tensorflow as tf

from memfit.steps.host_arrays import HostArrays
from memfit.steps.micro_batches.loss_shares import count_divisors
from memfit.steps.micro_batches.samples import whole
from memfit.steps.tracing import CompiledStep


class DivisorCount:
    """Counts a share's part of each divisor.

    In the graph only what masks depend on is run: the rest of the forward pass is dead code. Where no loss has
    masks or weights in its divisor, the number of samples tells it, and nothing is counted after the first batch.
    """

    def __init__(self, model: keras.Model, host: HostArrays | None) -> None:
        self._model = model
        self._losses = 0
        self.needed = type(model).compute_loss is keras.Model.compute_loss
        self._step = CompiledStep(model, self._count if host is None else host.feed(self._count))

    def count(self, data: Any, spec: Any) -> list[float]:
        """Returns what a batch counts for each loss, nothing where it is not needed; data is None for no sample."""
        if not self.needed:
            return []
        if data is None:
            self._step.trace(spec)
            return [0.0] * self._losses if self.needed else []
        counts = self._step(data, spec)
        return counts.numpy().tolist() if self.needed else []

    def _count(self, data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(whole(data))
        with keras.StatelessScope():
            counts = count_divisors(self._model, x, y, sample_weight)
        self.needed, self._losses = any(count.depends for count in counts), len(counts)
        if not self.needed:
            return tf.zeros([0], tf.float64)
        return tf.stack([count.noted for count in counts])
