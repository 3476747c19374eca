"""The process that `memfit run` starts: a script as Python itself would run it, with Keras led through memfit.

Nothing is imported before the script imports it, so that whatever it sets in the environment first still counts.
"""

import builtins
import ctypes
import importlib.util
import json
import logging
import os
import random
import signal
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SETTINGS = "MEMFIT_RUN"  # the environment variable in which the supervisor passes its settings
OUTCOME = "outcome"  # the file in which this process says that memory ended it
_DIE_WITH_PARENT = 1  # prctl(2): PR_SET_PDEATHSIG


def main(arguments: Sequence[str]) -> None:
    """Runs a script: its path, and then its own arguments."""
    # Taken out of the environment: processes that the script starts are its own business.
    settings = json.loads(os.environ.pop(SETTINGS))
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    _log_to_stderr(settings["talkative"])
    random.seed(settings["seed"])
    _after_import("numpy", lambda module: module.random.seed(settings["seed"]))
    _after_import("tensorflow", lambda module: _seed_shuffles(module, settings["seed"]))
    _after_import("keras", lambda module: _lead_through_memfit(module, settings))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _asked_to_end)
    os.register_at_fork(after_in_child=_forget_signals)
    _run(Path(arguments[0]), arguments, Path(settings["directory"]))


def _run(script: Path, arguments: Sequence[str], directory: Path) -> None:
    sys.argv = list(arguments)
    sys.path[0] = str(script.resolve().parent)
    file = str(script.absolute())
    module = types.ModuleType("__main__")
    vars(module).update(__file__=file, __builtins__=builtins, __spec__=None, __cached__=None)
    sys.modules["__main__"] = module
    try:
        exec(compile(script.read_bytes(), file, "exec", dont_inherit=True), vars(module))
    except SystemExit:
        raise
    except BaseException as error:
        if _is_stop(error):
            sys.exit(_STOPPED_BY[0] + 128)
        if _ran_out_of_memory(error):
            (directory / OUTCOME).write_text("memory")
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        if _is_refusal(error):
            trace = _without_memfit(trace)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            _end_by(signal.SIGINT)
        sys.exit(1)
    finally:
        _finish_writing()


_STOPPED_BY = [int(signal.SIGTERM)]


def _asked_to_end(number: int, frame: Any) -> None:
    supervision = sys.modules.get("memfit.survival.supervision")
    if supervision is not None and supervision.ask_to_stop():
        _STOPPED_BY[0] = number
        return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    _end_by(number)


def _end_by(number: int) -> None:
    _finish_writing()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _forget_signals() -> None:
    """A forked process, such as a data worker, ends as it would without memfit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_stop(error: BaseException) -> bool:
    supervision = sys.modules.get("memfit.survival.supervision")
    return supervision is not None and isinstance(error, supervision.Stopped)


def _is_refusal(error: BaseException) -> bool:
    """Whether memfit itself says no, which its own frames would not explain."""
    errors = sys.modules.get("memfit.errors")
    return errors is not None and isinstance(error, errors.MemfitError)


def _without_memfit(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Cuts a traceback off where the script calls memfit."""
    here = str(Path(__file__).parents[2])
    if trace is None or trace.tb_frame.f_code.co_filename.startswith(here):
        return None
    rest = _without_memfit(trace.tb_next)
    return types.TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _ran_out_of_memory(error: BaseException) -> bool:
    """Whether TensorFlow, the guard or Python said so; by name, as TensorFlow may not be there."""
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"ResourceExhaustedError", "OutOfMemory", "MemoryError"})


def _finish_writing() -> None:
    supervision = sys.modules.get("memfit.survival.supervision")
    here = None if supervision is None else supervision.of_this_process()
    if here is not None:
        here.writer.wait()


def _log_to_stderr(talkative: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("memfit: %(message)s"))
    log = logging.getLogger("memfit")
    log.addHandler(handler)
    log.setLevel(logging.INFO if talkative else logging.WARNING)
    log.propagate = False


def _after_import(name: str, action: Callable[[Any], None]) -> None:
    """Lets something happen when a module has been imported, whoever imports it."""

    class Finder:
        @staticmethod
        def find_spec(wanted: str, path: Any = None, target: Any = None) -> Any:
            if wanted != name:
                return None
            sys.meta_path.remove(Finder)  # once is enough, and others must find it now
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def executed(module: types.ModuleType) -> None:
                    execute(module)
                    action(module)

                spec.loader.exec_module = executed  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, Finder)


def _seed_shuffles(tensorflow: Any, seed: int) -> None:
    """Gives every `Dataset.shuffle` without a seed one that the next process will give it as well."""
    from memfit.survival.leading import seed_shuffles

    seed_shuffles(tensorflow, seed)


def _lead_through_memfit(keras: Any, settings: dict[str, Any]) -> None:
    from memfit.survival.leading import lead_through_memfit

    lead_through_memfit(keras, settings)


if __name__ == "__main__":
    main(sys.argv[1:])
