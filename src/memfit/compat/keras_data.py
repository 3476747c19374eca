"""Keras's private data adapters: what `fit` makes of its data.

Checked with Keras 3.12.0 and 3.15.1.
"""

from typing import Any


def batches_itself(x: Any) -> bool:
    """Says whether data yields batches (a dataset, a generator), so that `batch_size` is not Keras's to choose."""
    from keras.src.trainers.data_adapters.array_data_adapter import can_convert_arrays

    return not can_convert_arrays((x,)) and x is not None


def epoch_iterator(model: Any, x: Any, batch_size: int | None, steps: int | None) -> Any:
    """What Keras's `predict` reads its data with: any kind of data in, batches out."""
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    return TFEpochIterator(
        x=x,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=False,
        distribute_strategy=model.distribute_strategy,
        steps_per_execution=model.steps_per_execution,
    )


def next_batches(model: Any, iterator: Any) -> list[Any]:
    """Takes the batches of one execution from Keras's iterator, at least one."""
    import tensorflow as tf

    batches: list[Any] = []
    for _ in range(model.steps_per_execution):
        try:
            batches.append(next(iterator))
        except (StopIteration, tf.errors.OutOfRangeError):
            if not batches:
                raise
            break
    return batches


def split_off_validation(arrays: Any, share: float) -> tuple[Any, Any]:
    """Cuts arrays into those to train with and those to validate with, as `fit(validation_split=...)` does."""
    from keras.src.trainers.data_adapters.array_slicing import train_validation_split

    train, validation = train_validation_split(arrays, validation_split=share)
    return train, validation


def array_dataset(
    x: Any, y: Any, sample_weight: Any, batch_size: int | None, shuffle: Any, class_weight: Any
) -> Any:
    """The dataset that `fit` makes of arrays."""
    adapter = _adapter(x, y, sample_weight, class_weight, batch_size=batch_size, shuffle=shuffle)
    return adapter.get_tf_dataset()


def arrays_of_fit(x: Any, y: Any, sample_weight: Any, class_weight: Any) -> Any:
    """What `fit` makes of NumPy arrays before it cuts them into batches: checked, weighted, floats of one type."""
    from keras import tree
    from keras.src.trainers.data_adapters.array_slicing import convert_to_sliceable

    inputs = _adapter(x, y, sample_weight, class_weight)._inputs
    sliced = convert_to_sliceable(inputs, target_backend="numpy")
    return tree.map_structure(lambda leaf: None if leaf is None else leaf.array, tree.lists_to_tuples(sliced))


def is_dataset(x: Any) -> bool:
    """Says whether data is a tf.data pipeline (a distributed one is not)."""
    import tensorflow as tf

    return isinstance(x, tf.data.Dataset)


def _adapter(x: Any, y: Any, sample_weight: Any, class_weight: Any, **options: Any) -> Any:
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    return ArrayDataAdapter(x, y, sample_weight, class_weight=class_weight, **options)
