"""`trials`: one training for each setting, each in a process of its own."""

import json
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import cloudpickle

from memfit.budgets.fork_server import ForkServer
from memfit.budgets.isolation import dump_task, read_answer
from memfit.budgets.memory import Kind
from memfit.errors import InvalidInput, ProcessDied, in_one_line
from memfit.estimation.recording_process import start_recording_process
from memfit.progress import LOGGER, Progress
from memfit.searching.room import Room
from memfit.searching.trial import DIED, FAILED, OUT_OF_MEMORY, Trial, Trials
from memfit.searching.trial_process import FIRST_FIT, run_trial
from memfit.searching.trial_server import Shared, find_memory, start_server
from memfit.sizes import Size

_LOOK_SECONDS = 0.5
_GRACE_SECONDS = 10.0  # for threads whose processes were ended


def trials(
    function: Callable[[Any], Any],
    settings: Iterable[Any],
    *,
    memory: int | str | None = None,
    parallel: int | None = None,
) -> Trials:
    """Calls `function(setting)` for every setting, each in its own process, and returns all results.

    An out-of-memory error, an exception or a crash is the result of its trial; the others continue. When a trial
    has ended, all its memory is free again, and this process has used none of it.

    Trials run side by side where there is room for them. At its first `fit` (Keras's or memfit's) a trial waits
    until what is predicted for its model is free. Where nothing can be predicted, because the function has a
    custom training loop, the measured peak of earlier trials is used; the first of them runs alone. Outside of an
    arena, a trial that ran out of memory beside others is run once more, alone.

    Args:
        function: Trains with one setting, and returns plain data; of a Keras `History` its dict comes back.
        settings: What to call it with, one after the other.
        memory: What all trials together may take, such as "8GiB"; None for what is free. Without a GPU a size
            puts each of them into an arena of that size.
        parallel: How many may run at the same time at most; None for as many as there are cores. With 1 nothing
            is predicted.

    Returns:
        The results in the order of the settings.

    Raises:
        InvalidInput: If there is no setting, something cannot be sent to another process, or an argument is
            impossible.

    Example:
        ```python
        results = memfit.trials(train, [{"units": 32}, {"units": 512}], memory="2GiB")
        best = min((trial for trial in results if trial.status == "done"), key=lambda trial: trial.value)
        ```
    """
    if not callable(function):
        raise InvalidInput("Trials need a function to call with each setting", received=function)
    settings = list(settings)
    if not settings:
        raise InvalidInput(
            "There must be at least one setting to try", received=settings, remedy="Give at least one"
        )
    if parallel is not None and (isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1):
        raise InvalidInput("`parallel` must be at least 1", received=parallel)
    packed = _pack(function, "function")
    for setting in settings:
        _pack(setting, "setting")
    cores = len(os.sched_getaffinity(0))
    return _Study(packed, settings, find_memory(memory), min(parallel or cores, len(settings))).run()


def _pack(value: Any, what: str) -> bytes:
    try:
        packed: bytes = cloudpickle.dumps(value)
    except Exception as error:  # cloudpickle raises whatever an object's own pickling raises
        raise InvalidInput(
            f"A trial's {what} must be picklable to be sent to its process ({error})",
            received=value,
            remedy="Pass plain data or file names, and build the rest inside the function",
        ) from error
    return packed


class _Study:
    """One call of `trials`: threads that each wait for one process at a time."""

    def __init__(self, function: bytes, settings: list[Any], shared: Shared, parallel: int) -> None:
        self._function, self._settings, self._shared = function, settings, shared
        self._parallel = parallel
        self._room = Room(shared.size, parallel)
        self._results: dict[int, Trial] = {}
        self._next = iter(range(len(settings)))
        self._starting = threading.Lock()  # trials begin in the order of their settings
        self._stack = ExitStack()
        self._recordings: ForkServer | None = None
        self._starting_recordings = threading.Lock()
        self._ended = threading.Event()
        self._alone: set[int] = set()  # trials that were run again by themselves
        self._bug: BaseException | None = None

    def run(self) -> Trials:
        """Runs all trials; an interrupt ends every process first."""
        begun = time.monotonic()
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._parallel)]
        with Progress(sys.stderr, "trials", "importing TensorFlow"), self._stack:
            self._server = self._stack.enter_context(start_server(self._shared))
            self._stack.callback(self._room.stop)
            for thread in threads:
                thread.start()
            while not self._ended.is_set():
                self._tell()
                self._ended.wait(_LOOK_SECONDS)
        for thread in threads:
            thread.join(_GRACE_SECONDS)
        if self._bug is not None:
            raise self._bug
        return Trials(
            tuple(self._results[index] for index in range(len(self._settings))),
            self._shared.size,
            self._shared.source,
            self._room.most_inside,
            Size(self._room.most_reserved),
            time.monotonic() - begun,
        )

    def _tell(self) -> None:
        running, waiting = self._room.count
        waits = f", {waiting} waiting for memory" if waiting else ""
        bad = sum(trial.status != "done" for trial in self._results.values())
        failed = f" ({bad} not done)" if bad else ""
        logging.getLogger(LOGGER).info(
            "%d of %d ended%s, %d running%s", len(self._results), len(self._settings), failed, running, waits
        )

    def _work(self) -> None:
        try:
            while True:
                with self._starting:
                    index = next(self._next, None)
                    if index is None or not self._room.enter(index):
                        return
                self._results[index] = self._try(index)
                if len(self._results) == len(self._settings):
                    self._ended.set()
        except BaseException as error:  # raised again in the caller's thread
            self._bug = error
            self._room.stop()
            self._ended.set()

    def _try(self, index: int) -> Trial:
        trial = self._run_once(index)
        # In an arena no other process takes a trial's memory. On a device or a host others may have.
        short = trial.status == OUT_OF_MEMORY or (trial.status == DIED and "SIGKILL" in trial.error)
        if short and self._shared.kind is not Kind.ARENA and self._room.had_company(index):
            self._alone.add(index)
            if self._room.begin_again_alone(index):
                trial = self._run_once(index)
        need, source = self._room.leave(index, trial.peak)
        if need is None or index in self._alone:
            return trial
        return replace(trial, need=Size(need), need_source=source)

    def _run_once(self, index: int) -> Trial:
        setting = self._settings[index]
        begun = time.monotonic()
        task = dump_task(run_trial, (self._function, setting, self._parallel > 1, self._shared.on_host))
        try:
            answer = self._server.run_task(task, respond=lambda question: self._respond(index, question))
            trial: Trial = read_answer(*answer)
            return replace(trial, setting=setting)
        except ProcessDied as died:
            text = str(ProcessDied(died.exit_code, "The trial's process"))
            return Trial(setting, DIED, error=text, seconds=time.monotonic() - begun)
        except Exception as error:  # the value cannot be sent, or not be read here
            return Trial(setting, FAILED, error=in_one_line(error), seconds=time.monotonic() - begun)

    def _respond(self, index: int, question: bytes) -> bytes:
        """Answers what a trial asks: for room, or for a recording of a step."""
        kind, rest = question[:1], question[1:]
        if kind == FIRST_FIT and index in self._alone:
            return b"go"
        if kind == FIRST_FIT:
            return b"go" if self._room.ask(index, **json.loads(rest)) else b"stop"
        task, timeout = pickle.loads(rest)
        with self._starting_recordings:
            if self._recordings is None:
                self._recordings = self._stack.enter_context(start_recording_process())
        try:
            return pickle.dumps(("answer", *self._recordings.run_task(task, timeout=timeout)))
        except TimeoutError as error:
            return pickle.dumps(("timeout", str(error), 0))
        except ProcessDied as died:
            return pickle.dumps(("died", "", died.exit_code))
