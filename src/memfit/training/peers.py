"""The other processes that train the same model: none, unless `scaling` has found some."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras

from memfit.errors import InvalidInput, check_count
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Plan
from memfit.steps.host_arrays import HostArrays
from memfit.steps.share import Share
from memfit.steps.train_step import TrainStep


class Peers:
    """What a process that trains, validates or predicts asks of those that do the same beside it.

    This one has none beside it: what it computes is the whole batch. `scaling.rank.Rank` is one of several.

    Attributes:
        rank: The number of this process; rank 0 writes files and progress.
        count: How many there are.
        xla_is_off: Whether steps that the user compiles with XLA run without, to be those of several processes.
    """

    rank = 0
    count = 1
    xla_is_off = False

    @contextmanager
    def training(
        self, model: keras.Model, arguments: dict[str, Any], allowed: Fidelity
    ) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Lets a model be trained together for a while.

        Args:
            arguments: Of `fit`.
            allowed: How far the result may be from that of one process.

        Yields:
            The arguments for this process, and what a person has to know.
        """
        yield arguments, []

    def explain_shares(self, model: keras.Model, data: Any, allowed: Fidelity) -> list[str]:
        """Says what a process's share of a batch gives otherwise than the whole batch does.

        Args:
            data: An example of the training data.
            allowed: How far the result may be from that of one process.
        """
        return []

    def read_shares(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of `fit` with data of which this process reads its share, where that can be."""
        return arguments

    def settle(self, plan: Plan | None) -> Plan | None:
        """Returns the plan to follow, once all processes have made theirs: what changes numbers is one for all."""
        return plan

    def share_of(self, model: keras.Model, phase: str) -> Share | None:
        """Returns what steps have to know of the whole batch; None where a process computes all of it."""
        return None

    def begin(
        self, model: keras.Model, data: Any, spec: Any, phase: str, host: HostArrays | None = None
    ) -> tuple[Any, Any]:
        """Returns this process's share of a batch and its spec, once all know of the whole one; None for no sample.

        Args:
            phase: "training" or "validation".
            host: What the samples are read from, where the data is their numbers.
        """
        return data, spec

    def computing(self, undo: Callable[[], None]) -> AbstractContextManager[None]:
        """Surrounds a step, in which a process may wait for the others.

        Args:
            undo: Puts back what the step has changed so far, where another process is lost in it.
        """
        return nullcontext()

    def end_pass(self) -> None:
        """Says that this process has no batch left."""

    def exchange(
        self, model: keras.Model, changes: Sequence[tuple[Any, Any]], logs: Any, step: TrainStep | None = None
    ) -> Any:
        """Adds up what all have computed of a batch; returns the logs of the whole one.

        Args:
            changes: Variables that a batch may have changed, each with its value before.
            logs: What this process's share has given.
            step: The training step whose gradients are summed; None in evaluation.
        """
        return logs

    def share_weights(self, model: keras.Model) -> None:
        """Gives every process the weights that others have updated, where each updates a part of them."""

    def join_rows(self, outputs: Any) -> Any:
        """Returns the outputs of all processes' shares, one behind the other."""
        return outputs


ALONE = Peers()
_find: Callable[[], Peers] = lambda: ALONE  # noqa: E731 (`scaling` names another)


def install_finder(find: Callable[[], Peers]) -> None:
    """Names what finds the processes beside this one: `scaling` does."""
    global _find
    _find = find


def find_peers(ranks: str | int = "auto") -> Peers:
    """Returns the processes that train beside this one.

    Args:
        ranks: How many processes there have to be in all; "auto" for as many as there are.

    Raises:
        InvalidInput: If there are others than that.
    """
    if ranks != "auto":
        check_count('`ranks` is "auto" or a number of processes, at least 1', ranks)
    peers = _find()
    if ranks not in ("auto", peers.count):
        raise InvalidInput(
            "A training on several ranks is started as that many processes",
            received=f"ranks={ranks} in a job of {peers.count}",
            remedy=f"Start it by `memfit run --ranks {ranks} script.py`",
        )
    return peers
