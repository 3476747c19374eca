"""Joining the job that a script's process is a rank of: right before TensorFlow starts, and not before that."""

from collections.abc import Callable
from typing import Any

from memfit.survival.intercepting import intercept


def join_before_start(tensorflow: Any, is_forked: Callable[[], bool]) -> None:
    """Lets this process join its job when TensorFlow starts, unless the script makes a strategy that does.

    The script may configure TensorFlow until then: devices, threads, memory growth.

    Args:
        tensorflow: The module, just imported.
        is_forked: Whether this is a process that the script has forked, such as a data worker; it is no rank.
    """
    from memfit.compat.tf_clusters import before_start
    from memfit.scaling.communicator import join_cluster, stay_out
    from memfit.scaling.survivors import register_keeper

    register_keeper(lambda: None)  # before the first training there is nothing to keep
    joins = False

    def join() -> None:
        nonlocal joins
        joins = True
        if not is_forked():
            join_cluster()

    forget = before_start(join)

    def make_strategy(original: Callable[..., Any], this: Any, **arguments: Any) -> None:
        restore()
        if not joins:  # it is the script's own
            forget()
            stay_out()
        original(this, **arguments)

    restore = intercept(tensorflow.distribute.MultiWorkerMirroredStrategy, "__init__", make_strategy)
