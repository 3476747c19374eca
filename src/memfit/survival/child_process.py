"""The process that `memfit run` starts: a script as Python would run it, its calls of Keras routed through memfit.

Nothing is imported before the script imports it, so that whatever it sets in the environment first still counts.
"""

import functools
import logging
import os
import signal
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit.scaling.cluster import find_cluster
from memfit.survival.custom_loops import before_first_update
from memfit.survival.flags import as_flags
from memfit.survival.intercepting import ROUTED, call_memfit, intercept
from memfit.survival.joining import join_before_start
from memfit.survival.scripts import after_import, end_with_parent, run_script
from memfit.survival.seeding import seed_what_is_unseeded
from memfit.survival.settings import OUTCOME, ProcessSettings, name_of_rank

if TYPE_CHECKING:
    from memfit.survival.supervised_runner import SupervisedRunner
    from memfit.training.leaks.watcher import Watcher
    from memfit.training.records.recorder import Recorder

SETTINGS = "MEMFIT_RUN"  # the environment variable in which the supervisor passes its settings
_PACKAGE = str(Path(__file__).parents[1])


def main(arguments: Sequence[str]) -> None:
    """Runs a script: its path, and then its own arguments."""
    # Taken out of the environment: processes that the script starts are its own business.
    settings = ProcessSettings.from_json(os.environ.pop(SETTINGS))
    end_with_parent()
    _log_to_stderr(settings.verbose)
    seed_what_is_unseeded(settings.seed)
    process = _Process(settings)
    if find_cluster() is not None:
        after_import("tensorflow", lambda module: join_before_start(module, lambda: process.forked))
    after_import("keras", process.route_through_memfit)
    if settings.watch:
        after_import("numpy", lambda module: process.watch())
    after_import("memfit.training.fitting", lambda module: process.install_runner())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, process.stop)
    os.register_at_fork(after_in_child=process.forget_after_fork)
    del sys.path[0]  # what `python -m` put there
    process.run(Path(arguments[0]), arguments[1:])


class _Process:
    """The script's process: its trainings, and how it ends."""

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings = settings
        self._runner: SupervisedRunner | None = None
        self._keras_fit: Any = None
        self._loop: Recorder | None = None
        self._watcher: Watcher | None = None
        self._script = Path(settings.script)
        self.forked = False
        self._stopped_by = int(signal.SIGTERM)

    def route_through_memfit(self, keras: Any) -> None:
        """Lets `fit`, `evaluate` and `predict` of every Keras model go through memfit.

        Args:
            keras: The module, just imported.
        """
        if keras.config.backend() != "tensorflow":
            logging.getLogger("memfit").warning(
                "Keras uses the %s backend here: memfit changes nothing.", keras.config.backend()
            )
            return
        self._keras_fit = keras.Model.fit
        for name in ROUTED:
            intercept(keras.Model, name, functools.partial(self._route, name))
        if self._settings.rank:  # all ranks run the script, and would write the same file at the same time
            for name in ("save", "save_weights", "export"):
                intercept(keras.Model, name, lambda original, model, **arguments: None)
        before_first_update(keras, self._script, self._record_loop)

    def watch(self) -> None:
        """Begins to look for leaks, once NumPy is there: TensorFlow reads nothing of the environment before."""
        from memfit.training.leaks.watcher import begin

        self._watcher = begin()

    def _end_watch(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is None or self.forked:
            return
        from memfit.training.leaks.watcher import end

        leaks = end(watcher)
        if leaks:
            from memfit.survival.run_records import RunRecords

            RunRecords(Path(self._settings.records), self._settings.run).note_leaks(map(str, leaks))
        if leaks or not self._settings.quiet:
            for line in repr(leaks).splitlines():
                logging.getLogger("memfit").warning("%s", line)

    def _record_loop(self, line: str) -> None:
        """Measures a script that trains in a custom loop; a failure to do so is not the script's."""
        if self.forked:
            return
        try:
            from memfit.survival.loop_record import record_loop

            self._loop = record_loop(self._settings, line)
        except Exception as error:
            logging.getLogger("memfit").warning("The custom loop cannot be measured: %s", error)

    def _route(self, name: str, original: Callable[..., Any], model: Any, **arguments: Any) -> Any:
        from memfit.training.running import current_runner

        self.install_runner()
        # Inside of a training, memfit's and Keras's own calls are left to Keras; in a forked process all are.
        if self.forked or current_runner() is not self._runner:
            return original(model, **arguments)
        asked = {each: getattr(self._settings, each) for each in ("memory", "allow", "shard_optimizer")}
        return call_memfit(name, model, arguments, **asked)

    def install_runner(self) -> None:
        """Lets every `fit` of this process be run with checkpoints, `memfit.fit` included."""
        if self._runner is None and not self.forked:
            from memfit.survival.supervised_runner import SupervisedRunner
            from memfit.survival.supervision import Supervision
            from memfit.training.running import install_runner

            self._runner = SupervisedRunner(Supervision(self._settings), self._keras_fit)
            install_runner(self._runner)

    def run(self, script: Path, arguments: Sequence[str]) -> None:
        """Runs the script, and ends as it does."""
        self._script = script
        try:
            run_script(script, arguments)
        except SystemExit as end:
            self._end_loop("finished" if end.code in (None, 0) else "failed", "")
            raise
        except BaseException as error:
            from memfit.oom.reading import ran_out_of_memory

            short = ran_out_of_memory(error)
            self._end_loop("out of memory" if short else "failed", f"Ended by {type(error).__name__}.")
            self._end_by_error(error, short)
        finally:
            self._end_loop("finished", "")
            self._end_watch()
            self._finish_writing()

    def _end_loop(self, outcome: str, says: str) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.end(outcome, says)

    def _end_by_error(self, error: BaseException, short: bool) -> None:
        if _is_of("memfit.survival.supervision", "Stopped", error):
            sys.exit(self._stopped_by + 128)
        if short:
            name = name_of_rank(OUTCOME, self._settings.rank)
            (Path(self._settings.directory) / name).write_text("memory")
        trace = error.__traceback__
        while trace is not None and _is_memfit(trace):
            trace = trace.tb_next
        if _is_of("memfit.errors", "MemfitError", error):
            trace = _without_memfit(trace)  # what memfit refuses, its own frames would not explain
            error.args = tuple(as_flags(part) if isinstance(part, str) else part for part in error.args)
            self._advise_memory(error)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            self._end_by_signal(signal.SIGINT)
        sys.exit(1)

    def _advise_memory(self, error: BaseException) -> None:
        """Names the flag, where a memory was asked for and a larger one would do."""
        smallest = getattr(error, "smallest_memory", None)
        if smallest is not None and self._settings.memory is not None:
            flag = f"--memory {-(-smallest // 2**20)}MiB"
            error.args = (f"{error} If there is that much memory, run again with {flag}.",)

    def stop(self, number: int, frame: Any) -> None:
        """Handles a signal: a training ends after its batch, with a checkpoint; anything else at once."""
        if self._runner is not None and self._runner.supervision.ask_to_stop():
            self._stopped_by = number
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        self._end_by_signal(number)

    def _end_by_signal(self, number: int) -> None:
        self._finish_writing()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _finish_writing(self) -> None:
        if self._runner is not None:
            self._runner.supervision.writer.wait()

    def forget_after_fork(self) -> None:
        """Lets a forked process, such as a data worker, be as it would be without memfit."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.forked = True
        if self._runner is not None:
            from memfit.training.running import install_runner

            self._runner = None
            install_runner(None)


def _is_of(module: str, name: str, error: BaseException) -> bool:
    """Whether an error is of a class of memfit's, without importing it: an error of a module not there is not."""
    there = sys.modules.get(module)
    return there is not None and isinstance(error, getattr(there, name))


def _is_memfit(trace: types.TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _without_memfit(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Cuts a traceback off where the script calls memfit."""
    if trace is None or _is_memfit(trace):
        return None
    rest = _without_memfit(trace.tb_next)
    return types.TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


class _FlagFormatter(logging.Formatter):
    """Writes advice as flags of the command line: the script knows nothing of memfit's arguments in Python."""

    def format(self, record: logging.LogRecord) -> str:
        return as_flags(super().format(record))


def _log_to_stderr(verbose: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_FlagFormatter("memfit: %(message)s"))
    log = logging.getLogger("memfit")
    log.addHandler(handler)
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    log.propagate = False


if __name__ == "__main__":
    main(sys.argv[1:])
