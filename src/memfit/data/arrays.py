"""`memfit.arrays`: training on arrays without a second copy of them."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.compat.tf_datasets import let_go_of_pages
from memfit.compat.tf_graphs import Tensor
from memfit.data.order import Iteration, Order, finish_iterations, per_iteration
from memfit.data.pipeline import Pipeline
from memfit.data.sizing import batches_ahead, host_share
from memfit.errors import InvalidInput
from memfit.sizes import Size


def arrays(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int = 32,
    shuffle: bool = False,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    memory: int | str | None = None,
) -> Any:
    """Returns a `tf.data.Dataset` of batches of arrays, of which no more than a few batches are ever copied.

    Stock Keras turns the whole array into one tensor, which is a second copy of it. Here each batch is gathered
    from the array itself, so arrays may also be memory-mapped, HDF5 or Zarr: whatever has `shape`, `dtype` and
    takes a list of rows. Batches have the dtypes that Keras's `fit` would give them: floats become `floatx`.

    Args:
        x: An array, or a tuple, list or dict of arrays of the same length.
        y: Targets, likewise, or None.
        sample_weight: Weights, likewise, or None.
        batch_size: Samples in a batch; the last one of an epoch may be smaller.
        shuffle: Whether every epoch has its own random order, drawn from `seed` and the epoch alone.
        seed: What the order is drawn from.
        shard: `(index, workers)`: this worker reads every n-th sample of each epoch's order, and no others.
        memory: Host memory for batches ahead, such as "1GiB"; None: half of what is free. The arrays themselves
            are not counted: they are there already.

    Returns:
        The dataset. Its attribute `memfit` is a `Pipeline`: figures, and `resume(epoch, batch)`.

    Raises:
        InvalidInput: If the arrays have different lengths or are empty.

    Example:
        >>> import numpy as np
        >>> dataset = arrays(np.zeros((10, 3)), np.arange(10), batch_size=4)
        >>> *_, (inputs, targets) = dataset
        >>> inputs.shape, targets.numpy().tolist()
        (TensorShape([2, 3]), [8, 9])
    """
    structure = tf.nest.map_structure(_sliceable, _element(x, y, sample_weight))
    flat = tf.nest.flatten(structure)
    order = Order(_common_length(flat), batch_size, shuffle, seed, shard)
    dtypes = [_dtype_in_keras(array) for array in flat]
    batch_bytes = sum(
        min(batch_size, order.samples) * int(np.prod(array.shape[1:])) * dtype.itemsize
        for array, dtype in zip(flat, dtypes, strict=True)
    )
    share = host_share(memory)
    ahead = batches_ahead(share, batch_bytes)

    def gather(numbers: Any) -> list[Any]:
        rows = [_rows(array, numbers, dtype) for array, dtype in zip(flat, dtypes, strict=True)]
        # After every batch: the kernel maps far more than what is read (after 64 MiB of random rows of a 256 MiB
        # file, 237 MiB of it).
        for array in flat:
            let_go_of_pages(array)
        return rows

    def batch_of(numbers: Tensor) -> Any:
        with tf.name_scope("memfit"):
            rows = tf.numpy_function(
                gather, [numbers], [tf.as_dtype(dtype) for dtype in dtypes], stateful=False
            )
        for tensor, array in zip(rows, flat, strict=True):
            tensor.set_shape((None, *array.shape[1:]))
        return tf.nest.pack_sequence_as(structure, rows)

    def make_batches(begun: Iteration) -> Any:
        batches = tf.data.Dataset.from_tensor_slices(begun.numbers).batch(begun.size)
        return batches.enumerate(begun.batch).map(
            lambda batch, chosen: (begun.epoch, batch, batch_of(chosen))
        )

    any_length = finish_iterations(per_iteration(order, make_batches), order, ahead=ahead, memory=share)
    dataset = any_length.apply(tf.data.experimental.assert_cardinality(order.batches))
    dataset.memfit = Pipeline(order, Size(batch_bytes), ahead, share, any_length)
    return dataset


def _dtype_in_keras(array: Any) -> Any:
    """As Keras's own adapter has it: floats as floatx, everything else as it is."""
    dtype = np.dtype(array.dtype)
    return np.dtype(keras.config.floatx()) if dtype.kind == "f" else dtype


def _element(x: Any, y: Any, sample_weight: Any) -> Any:
    """What one batch looks like to Keras: `x`, `(x, y)` or `(x, y, sample_weight)`."""
    if y is None and sample_weight is not None:
        raise InvalidInput("Sample weights need targets: pass y too", received="y=None")
    # tf.data takes a list for one tensor.
    x, y, sample_weight = keras.tree.lists_to_tuples((x, y, sample_weight))
    if sample_weight is not None:
        return x, y, sample_weight
    if y is not None:
        return x, y
    # A bare tuple would be read as (x, y).
    return (x,) if isinstance(x, tuple) else x


def _sliceable(array: Any) -> Any:
    """The array itself where rows can be taken from it; NumPy's view of it otherwise (DataFrames, tensors)."""
    if hasattr(array, "iloc") or not all(hasattr(array, name) for name in ("shape", "dtype", "__getitem__")):
        array = np.asarray(array)
    if isinstance(array, np.ndarray) or np.dtype(array.dtype).kind != "O":
        return array
    raise InvalidInput("Arrays must hold numbers or text, not Python objects", received=array)


def _common_length(flat: list[Any]) -> int:
    lengths = {int(array.shape[0]) if len(array.shape) else 0 for array in flat}
    if len(lengths) != 1 or 0 in lengths:
        shapes = ", ".join(str(tuple(array.shape)) for array in flat)
        raise InvalidInput(
            "All arrays must have the same number of rows, at least one", received=f"shapes {shapes}"
        )
    return lengths.pop()


def _rows(array: Any, numbers: Any, dtype: Any) -> Any:
    if isinstance(array, np.ndarray):
        return array[numbers].astype(dtype, copy=False)
    # HDF5 takes rows only in rising order, each once.
    rising, back = np.unique(numbers, return_inverse=True)
    return np.asarray(array[rising])[back].astype(dtype, copy=False)
