"""TensorFlow's private parts of clusters: acting before it starts, and how long it waits for other processes.

Checked with TensorFlow 2.19.0 and 2.21.0.
"""

from collections.abc import Callable
from typing import Any

from memfit.compat.tf_runtime import _eager, is_initialised


def before_start(action: Callable[[], None]) -> Callable[[], None]:
    """Calls an action once, right before TensorFlow starts its devices; at once where it never will again.

    Collectives can only be set up then. A program that configures TensorFlow first (visible devices, threads,
    memory growth) has done so by then, as TensorFlow itself refuses it later.

    Args:
        action: What to do. It may start TensorFlow itself.

    Returns:
        What takes the wish back.
    """
    import tensorflow as tf

    owner = _eager().Context
    own = owner.ensure_initialized

    def ensure_initialized(self: Any) -> None:
        if not is_initialised():
            forget()
            with tf.init_scope():  # the first op may be one of a function that is being traced
                action()
        own(self)

    def forget() -> None:
        owner.ensure_initialized = own

    if is_initialised():
        action()
    else:
        owner.ensure_initialized = ensure_initialized
    return forget


def limit_waiting(count: int, *, silence: float, arrival: float) -> None:
    """Says how long TensorFlow waits for the other workers of a cluster, before it starts.

    Args:
        count: How many workers there are, this one included.
        silence: Seconds without a heartbeat after which a worker counts as gone.
        arrival: Seconds in which all workers have to be there.
    """
    job = _eager().coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=count)
    _eager().context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/task:0",
        cluster_register_timeout_in_ms=round(1000 * arrival),
        heartbeat_timeout_in_ms=round(1000 * silence),
        coordinated_jobs=[job],
    )
