"""What the processes of a job do together, by TensorFlow's own collectives: sums, rows, having the same state."""

import json
import os
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.compat import tf_clusters
from memfit.errors import InvalidInput, in_one_line
from memfit.scaling.cluster import Cluster, find_cluster
from memfit.steps.bits import as_integers, from_integers

# In a sum of some KiB the death of a peer is noticed at once, in a tiny one only by missing heartbeats (9 s).
_LEAST = 1024
_stays_out = False
_SILENCE = 8.0  # seconds: a rank that stands still is missed within 10
_ARRIVAL = 600.0  # seconds: a scheduler may start the last rank minutes after the first


class Ranks:
    """The processes of a job, and which of them this one is.

    Every method is called by all ranks, in the same order: it returns when all have called it.

    Attributes:
        rank: The number of this process, from 0.
        count: How many processes there are.
    """

    def __init__(self, cluster: Cluster) -> None:
        # It reads TF_CONFIG, and has to be there before TensorFlow has run anything.
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self.rank, self.count = cluster.rank, cluster.count
        self._traced: dict[Any, Any] = {}

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the sums over all ranks, one tensor after the other: beside them only one is in the way."""
        totals: list[Any] = []
        for tensor in tensors:
            with tf.control_dependencies(totals[-1:]):
                after = tf.identity(tensor)
            totals.append(self._together(_add_up, after))
        return totals

    def sum_small(self, numbers: Any) -> Any:
        """Returns the sums of a vector's few numbers, filled up so that a peer's death is noticed at once."""
        padded = tf.concat([numbers, tf.zeros([_LEAST], numbers.dtype)], 0)
        return self.sum([padded])[0][: tf.size(numbers)]

    def joined(self, rows: Any) -> Any:
        """Returns the rows of all ranks, one behind the other in the order of the ranks; some may have none."""
        return self._together(_put_behind_each_other, rows)

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, anything that JSON can write, in the order of the ranks."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8).astype(np.int64)
        lengths = np.zeros(self.count, np.int64)
        lengths[self.rank] = len(text)
        lengths = self.sum_integers(lengths).numpy()
        texts = np.zeros((self.count, lengths.max()), np.int64)
        texts[self.rank, : len(text)] = text
        texts = self.sum_integers(texts.reshape(-1)).numpy().reshape(texts.shape)
        return [
            json.loads(bytes(row[:length].astype(np.uint8)))
            for row, length in zip(texts, lengths, strict=True)
        ]

    def share_newest(self, state: Sequence[Any], step: int) -> None:
        """Gives all ranks the state of the one that is farthest, the first of them where several are.

        Args:
            state: TensorFlow's variables, the same ones in the same order on every rank.
            step: How far this rank is.
        """
        steps = self.gather(step)
        mine = steps.index(max(steps)) == self.rank
        for variable in state:
            bits = as_integers(variable.read_value())
            sent = self.sum_integers(tf.reshape(bits if mine else tf.zeros_like(bits), [-1]))
            variable.assign(from_integers(tf.reshape(sent, tf.shape(bits)), variable.dtype))

    def sum_integers(self, numbers: Any) -> Any:
        """Returns the sums of a vector's whole numbers; traced once for vectors of any length."""
        numbers = tf.convert_to_tensor(numbers)
        if numbers.dtype not in self._traced:
            spec = tf.TensorSpec([None], numbers.dtype)
            self._traced[numbers.dtype] = tf.function(self.sum_small, input_signature=[spec], autograph=False)
        return self._traced[numbers.dtype](numbers)

    def _together(self, function: Any, tensor: Any) -> Any:
        if tf.executing_eagerly():  # outside of a function TensorFlow warns of every call
            if function not in self._traced:
                together = partial(self._together, function)
                self._traced[function] = tf.function(together, autograph=False, reduce_retracing=True)
            return self._traced[function](tensor)
        # An op of its own: an argument of a function has no device, and collectives want one.
        return self._strategy.run(lambda value: function(tf.identity(value)), args=(tensor,))


@cache
def join_cluster() -> Ranks | None:
    """Joins the job that this process belongs to, the first time it is called; None where it belongs to none.

    Raises:
        InvalidInput: If TensorFlow has run something before: collectives are set up when it starts. If this rank's
            port is in use, or other ranks do not come.
    """
    cluster = None if _stays_out else find_cluster()
    return None if cluster is None else _join(cluster)


def stay_out() -> None:
    """Leaves this process's cluster to a strategy that the script itself makes."""
    global _stays_out
    _stays_out = True


def _join(cluster: Cluster) -> Ranks:
    os.environ["TF_CONFIG"] = cluster.to_tf_config()  # a chief is rank 0, nothing else
    tf_clusters.limit_waiting(cluster.count, silence=_SILENCE, arrival=_ARRIVAL)
    try:
        return Ranks(cluster)
    except RuntimeError as error:
        raise InvalidInput(
            "A process must join its cluster before TensorFlow runs anything",
            received=str(error).strip(),
            remedy="Start the script with `memfit run script.py`, which joins first",
        ) from error
    except tf.errors.OpError as error:
        raise InvalidInput(
            f"All {cluster.count} ranks must start within {_ARRIVAL:.0f} s, each at its own address",
            received=f"rank {cluster.rank} at {cluster.addresses[cluster.rank]}: {in_one_line(error)}",
            remedy="Check that the port is free, that every rank was started, and that it can reach rank 0 at "
            + cluster.addresses[0],
        ) from error


def _add_up(tensor: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensor)


def _put_behind_each_other(rows: Any) -> Any:
    return tf.distribute.get_replica_context().all_gather(rows, axis=0)
