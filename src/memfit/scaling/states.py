"""What ranks add up of a batch: divisors of losses before it; metrics, statistics and seeds after it.

So each rank has the whole state of the job, and any one that is left can stand for all.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from memfit.compat.keras_layers import layer_states
from memfit.compat.keras_training import kept_steps
from memfit.scaling.communicator import Ranks
from memfit.steps.host_arrays import HostArrays
from memfit.steps.micro_batches.loss_shares import count_divisors
from memfit.steps.micro_batches.samples import whole
from memfit.steps.tracing import CompiledStep


class DivisorCount:
    """Counts a share's part of each divisor of the whole batch's losses, where masks or weights decide them.

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


def share_changes(
    ranks: Ranks, model: keras.Model, changes: Sequence[tuple[Any, Any]], fraction: float
) -> Any:
    """Gives every rank the states that all ranks' shares of a batch have made; returns the model's metrics.

    A state becomes what it was plus what the ranks have added to it. The states of metrics are sums: what all have
    added. Statistics are means: weighted by the samples. Anything else, such as a seed, changes alike on all ranks
    that have samples, of which rank 0 always is one.

    Args:
        changes: TensorFlow's variables that a batch may have changed, each with its value before.
        fraction: How much of the batch this rank's share was.
    """
    key = ("share changes", *(id(variable) for variable, _ in changes))
    kept = kept_steps(model)
    if key not in kept:
        kept[key] = _trace(ranks, model, [variable for variable, _ in changes])
    return kept[key](tf.constant(fraction, tf.float64), *(before for _, before in changes))


def _trace(ranks: Ranks, model: keras.Model, variables: Sequence[Any]) -> Any:
    metrics = {id(variable.value) for variable in model.metrics_variables}
    states = {id(variable.value) for variable in layer_states(model)}

    def share(fraction: Any, *before: Any) -> Any:
        shared = [(v, b) for v, b in zip(variables, before, strict=True) if id(v) in metrics | states]
        first = 1.0 if ranks.rank == 0 else 0.0

        def weight(variable: Any) -> Any:
            if id(variable) in metrics:
                return 1.0
            return fraction if variable.dtype.is_floating else first

        gained = [
            tf.reshape(weight(v) * (tf.cast(v, tf.float64) - tf.cast(b, tf.float64)), [-1]) for v, b in shared
        ]
        if gained:
            sizes = [tf.size(each) for each in gained]
            totals = tf.split(ranks.sum_small(tf.concat(gained, 0)), sizes)
            for (variable, old), total in zip(shared, totals, strict=True):
                new = tf.cast(old, tf.float64) + tf.reshape(total, tf.shape(old))
                variable.assign(tf.cast(new, variable.dtype))
        return model.get_metrics_result()

    return tf.function(share, autograph=False)
