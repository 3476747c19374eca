"""Keras's own `fit` under `MultiWorkerMirroredStrategy`: the two functions that fail there, mended (keras 20585).

Only for comparison: it then runs, and is still wrong for clipping, masks, weights and odd batches.
"""

from typing import Any


def patch() -> None:
    """Mends both functions for the rest of the process."""
    from keras.src import tree
    from keras.src.backend.tensorflow import trainer

    own = trainer.reduce_per_replica

    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None:
            for _, _, batches in iterator:
                data_batch = tree.map_structure(
                    lambda leaf: self.distribute_strategy.experimental_local_results(leaf)[0], next(batches)
                )
                break
        with self.distribute_strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    def reduce(values: Any, strategy: Any, reduction: Any) -> Any:
        if trainer._collective_all_reduce_multi_worker(strategy) and reduction in ("auto", "mean"):
            return tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)
        return own(values, strategy, reduction)

    trainer.TensorFlowTrainer._maybe_symbolic_build = build
    trainer.reduce_per_replica = reduce
