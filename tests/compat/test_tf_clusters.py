"""Canaries of what memfit uses of TensorFlow's clusters beside its public face."""

from typing import Any

import tensorflow as tf

from compat.canaries import canary
from memfit.compat import tf_clusters, tf_runtime
from prepared import run_forked


def _start() -> list[Any]:
    seen: list[Any] = []
    tf_clusters.before_start(lambda: seen.append(tf_runtime.is_initialised()))
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.function(lambda: tf.ones([1]))()
    tf.ones([1])
    return seen


@canary(
    "tf_clusters.before_start",
    "Context.ensure_initialized",
    of="tensorflow",
)
def test_an_action_comes_right_before_tensorflow_starts() -> None:
    assert run_forked(_start, TF_ENABLE_ONEDNN_OPTS="0") == [False]


def _limit() -> list[int]:
    tf_clusters.limit_waiting(3, silence=8.0, arrival=600.0)
    config = tf_runtime._eager().context().coordination_service
    return [
        config.heartbeat_timeout_in_ms,
        config.cluster_register_timeout_in_ms,
        config.coordinated_job_list[0].num_tasks,
    ]


@canary(
    "tf_clusters.limit_waiting",
    "Context.configure_coordination_service",
    "context.coordination_config_pb2",
    of="tensorflow",
)
def test_waiting_for_other_workers_is_limited() -> None:
    assert run_forked(_limit, TF_ENABLE_ONEDNN_OPTS="0") == [8000, 600_000, 3]
