"""Keras's private parts under `tf.distribute` strategies: two functions that fail on several workers.

Checked with Keras 3.12.0 and 3.15.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memfit.compat.keras_training import build, has_strategy


@contextmanager
def mended() -> Iterator[None]:
    """Lets Keras's own `fit`, `evaluate` and `predict` run under MultiWorkerMirroredStrategy, for a while.

    Keras learns shapes from the mean of all replicas' samples, which fails for a structure of tensors and for
    replicas with different numbers of samples; and averages logs, which are scalars, over their samples
    (keras issue 20585, ray issue 47464). Here shapes are those of one replica, and logs are averaged over replicas.
    """
    trainer = _trainer()
    owner, reduce = trainer.TensorFlowTrainer, trainer.reduce_per_replica
    own = owner._maybe_symbolic_build

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if trainer._collective_all_reduce_multi_worker(strategy) and reduction in ("auto", "mean"):
            return trainer.tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)
        return reduce(values, strategy, reduction)

    owner._maybe_symbolic_build, trainer.reduce_per_replica = _build_from_one_replica, reduce_per_replica
    try:
        yield
    finally:
        owner._maybe_symbolic_build, trainer.reduce_per_replica = own, reduce


def _build_from_one_replica(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
    """Stands in for `_maybe_symbolic_build`."""
    import keras
    import tensorflow as tf

    if not has_strategy(self):
        return

    strategy = self.distribute_strategy

    def first(value: Any) -> Any:
        distributed = isinstance(value, tf.distribute.DistributedValues)
        return strategy.experimental_local_results(value)[0] if distributed else value

    if iterator is not None:
        for _, _, batches in iterator:
            data_batch = _trainer().tree.map_structure(first, next(batches))
            break
    with strategy.scope():
        build(self, *keras.utils.unpack_x_y_sample_weight(data_batch))


def _trainer() -> Any:
    from keras.src.backend.tensorflow import trainer

    return trainer
