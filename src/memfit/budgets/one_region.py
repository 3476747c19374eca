"""Taking what is left of an arena as one region, because a tensor never lies across two of them."""

from contextlib import suppress

import tensorflow as tf

from memfit.budgets.arena import arena_cap, pieces_left
from memfit.budgets.peaks import take_peak

_MIB = 2**20
_DEVICE = "CPU:0"
_taken = False  # once in a process: the allocator keeps what it has taken


def take_one_region() -> None:
    """Lets an arena's allocator take all that is left at once, and keep it for what follows.

    A GPU's allocator has its memory in one region unless memory growth is on. An arena's takes regions that double.
    Nothing is written, so the operating system gives no memory yet. Outside of an arena nothing is done.
    """
    global _taken
    cap = arena_cap()
    if cap is None or _taken or tf.config.list_logical_devices("GPU"):
        return
    _taken = True
    for left in pieces_left(cap, take_peak(_DEVICE)):
        # Where more regions were taken than is usual, or memory was in use that was not counted.
        with suppress(tf.errors.ResourceExhaustedError):
            _allocate(tf.constant([left // _MIB, _MIB]))
            break
    tf.config.experimental.reset_memory_stats(_DEVICE)


@tf.function(autograph=False)
def _allocate(shape: tf.Tensor) -> tf.Tensor:
    # A recording knows the allocation by this name, and its replay takes what is left there.
    return tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, init=False, name="memfit_one_region")
