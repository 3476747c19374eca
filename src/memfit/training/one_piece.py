"""Taking an arena in one piece, because what is free in several pieces fits no large tensor."""

import tensorflow as tf

from memfit.budgets.arena import arena_cap
from memfit.budgets.size import Size
from memfit.training.monitoring.peaks import take_peak

_MIB = 2**20


def take_in_one_piece(memory: Size, device: str) -> None:
    """Lets TensorFlow's allocator take what is left of `memory` at once, and keep it for what follows.

    A GPU's allocator has its memory in one piece unless memory growth is on. An arena's takes regions that double,
    and a tensor never lies across two of them. Nothing is written, so the operating system gives no memory yet.

    Args:
        memory: What the process may take on the device.
        device: The device, such as "CPU:0"; nothing is done unless it is an arena.
    """
    cap = arena_cap()
    if cap is None or device != "CPU:0":
        return
    # As regions double, twice what was in use at most was taken for it, and the smallest region is 2 MiB.
    left = (min(cap, memory) - 2 * take_peak(device)) // _MIB - 4
    if left > 0:
        tf.raw_ops.Empty(shape=[left, _MIB], dtype=tf.uint8, init=False)
        tf.config.experimental.reset_memory_stats(device)
