"""The two ends that all pipelines of memfit share: where an iteration begins, and how it notes its end."""

from collections.abc import Callable
from typing import Any

from memfit.data.order import Order
from memfit.data.sizing import limit_tuning


def per_iteration(order: Order, make: Callable[[Any, Any, Any], Any]) -> Any:
    """Returns a dataset that is made anew in every iteration.

    Args:
        order: What says where the iteration begins.
        make: From epoch, first batch and sample numbers to the dataset of the batches of that iteration.
    """
    import tensorflow as tf

    def begin(_: Any) -> Any:
        with tf.name_scope("memfit"):
            epoch, batch, numbers = tf.numpy_function(order.begin, [], [tf.int64] * 3)
        return tf.ensure_shape(epoch, ()), tf.ensure_shape(batch, ()), tf.ensure_shape(numbers, (None,))

    return tf.data.Dataset.range(1).map(begin).flat_map(make)


def finish_iterations(dataset: Any, order: Order, *, ahead: int, memory: int) -> Any:
    """Returns batches of `(epoch, batch, element)` as batches of `element`, prepared ahead, with the end noted.

    The noting comes after the buffer of batches ahead, so that it happens when the last batch is handed out and
    not when it is prepared.

    Args:
        dataset: The batches, each with its epoch and number.
        order: What is told when an epoch's last batch is handed out.
        ahead: How many batches are prepared ahead.
        memory: The budget for tf.data's own tuning.
    """
    import tensorflow as tf

    last = order.batches - 1

    def note(epoch: Any) -> Any:
        order.position.next_epoch(epoch)
        return epoch

    def hand_out(epoch: Any, batch: Any, element: Any) -> Any:
        with tf.name_scope("memfit"):
            noted = tf.cond(
                tf.equal(batch, last), lambda: tf.numpy_function(note, [epoch], tf.int64), lambda: epoch
            )
        # Without a use of it tf.data would drop the call as dead code.
        with tf.control_dependencies([noted]):
            return tf.nest.map_structure(tf.identity, element)

    return limit_tuning(dataset.prefetch(ahead).map(hand_out), memory)


def declare_length(dataset: Any, order: Order) -> Any:
    """Returns the dataset with its number of batches, which Keras shows and plans by."""
    import tensorflow as tf

    return dataset.apply(tf.data.experimental.assert_cardinality(order.batches))
