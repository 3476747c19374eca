"""When another rank is lost: this rank keeps its state and ends, so that all of them can be started again.

TensorFlow's collectives are gone for good in a process whose peer died ("Restart your program to reset"), but its
variables are whole: an update is only begun with a complete sum. So the step is rolled back, the state is written
by whoever runs this process (`memfit run`), and the process ends. Any one survivor is a full checkpoint.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from memfit.errors import MemfitError, in_one_line

LOST_A_RANK = 75  # the exit code of a survivor: EX_TEMPFAIL, "try again later"
STOOD_STILL = 69  # that of a rank that has waited for too long: EX_UNAVAILABLE
# Seconds that a rank waits for others that are there: a callback of rank 0 may take minutes at the end of an epoch.
TOLD_AFTER, ENDED_AFTER, LOOKED_AFTER = 600.0, 3600.0, 5.0
_LOG = logging.getLogger("memfit")
# What a collective raises when a peer is gone: a closed socket, missing heartbeats, an operation that was given up.
_LOSSES = {"UnavailableError", "DeadlineExceededError", "AbortedError", "CancelledError"}
_SIGNS = (
    "Socket closed",
    "Connection reset",
    "heartbeat",
    "coordination service",
    "Collective ops is aborted",
)

_keep: Callable[[], None] | None = None


class RankLost(MemfitError, RuntimeError):
    """Another process of the job is gone, and nobody is there to start all of them again."""


def register_keeper(keep: Callable[[], None]) -> None:
    """Names what writes this process's state when another rank is lost.

    Args:
        keep: Writes all variables and the position of a training, once the step is rolled back.
    """
    global _keep
    _keep = keep


class _Watch:
    """Looks at how long this rank waits for the others, so that no wait is without an end.

    Heartbeats tell of ranks that are gone; they do not tell of ranks that a script has sent elsewhere, as by
    `if rank == 0: model.fit(...)`.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Surrounds what may wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def _look(self) -> None:
        told: float | None = None
        while True:
            time.sleep(LOOKED_AFTER)
            since = self._since
            waited = 0.0 if since is None else time.monotonic() - since
            if waited > TOLD_AFTER and told != since:
                told = since
                _LOG.warning(
                    "This rank has waited %.0f minutes for the others: they are running, but do something else. "
                    "All ranks must make the same calls of fit(), evaluate() and predict().",
                    waited / 60,
                )
            if waited > ENDED_AFTER:
                _LOG.warning("This rank has waited %.0f minutes for the others, and stops.", waited / 60)
                sys.stderr.flush()
                os._exit(STOOD_STILL)


_watch = _Watch()


@contextmanager
def meeting_others(undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Surrounds collectives: where another rank is lost in them, `undo` is called, and the state is kept.

    Args:
        undo: Puts back what the step has changed so far: its statistics, seeds and metrics.
    """
    try:
        with _watch.waiting():
            yield
    except Exception as error:
        if not _is_loss(error):
            raise
        _keep_state(error, undo)


def _is_loss(error: BaseException) -> bool:
    """Whether an error of a collective means that another rank is gone."""
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & _LOSSES) or ("OpError" in names and any(sign in str(error) for sign in _SIGNS))


def _keep_state(error: BaseException, undo: Callable[[], None]) -> NoReturn:
    """Keeps this rank's state and ends the process; whoever started the ranks starts them again.

    Raises:
        RankLost: If nobody keeps states here, because the process was not started by `memfit run`.
    """
    if _keep is None:
        raise RankLost(
            f"Another rank of this job is gone ({in_one_line(error)}), and this process cannot go on without it. "
            "Under `memfit run` all ranks are started again and go on at this batch."
        ) from error
    try:
        undo()
        _keep()
    except Exception as failure:  # then another survivor's state counts, or the last checkpoint
        _LOG.warning("This rank's state could not be saved: %s", in_one_line(failure))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by an exception: TensorFlow's own end may wait for the rank that is gone.
    os._exit(LOST_A_RANK)
