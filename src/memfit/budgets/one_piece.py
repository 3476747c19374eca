"""Taking an arena in one piece, because what is free in several pieces fits no large tensor."""

from contextlib import suppress

import tensorflow as tf

from memfit.budgets.arena import arena_cap, pieces_left
from memfit.budgets.peaks import take_peak
from memfit.sizes import Size

_MIB = 2**20
_taken: set[str] = set()  # once in a process: the allocator keeps what it has taken


def take_in_one_piece(memory: Size, device: str) -> None:
    """Lets TensorFlow's allocator take what is left of `memory` at once, and keep it for what follows.

    A GPU's allocator has its memory in one piece unless memory growth is on. An arena's takes regions that double,
    and a tensor never lies across two of them. Nothing is written, so the operating system gives no memory yet.

    Args:
        memory: What the process may take on the device.
        device: The device, such as "CPU:0"; nothing is done unless it is an arena.
    """
    cap = arena_cap()
    if cap is None or device != "CPU:0" or device in _taken:
        return
    _taken.add(device)
    for left in pieces_left(min(cap, memory), take_peak(device)):
        # Where more regions were taken than is usual, or memory was in use that was not counted.
        with suppress(tf.errors.ResourceExhaustedError):
            tf.raw_ops.Empty(shape=[left // _MIB, _MIB], dtype=tf.uint8, init=False)
            break
    tf.config.experimental.reset_memory_stats(device)
