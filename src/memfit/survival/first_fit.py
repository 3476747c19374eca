"""Running a training script up to its first fit(), and taking over what it was about to train."""

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit.errors import InvalidInput, in_one_line
from memfit.survival.custom_loops import before_first_update
from memfit.survival.intercepting import intercept
from memfit.survival.scripts import after_import, check_script, run_script

if TYPE_CHECKING:
    from memfit.survival.fit_call import FitCall


class TrainsInLoop(InvalidInput):
    """A script trains in a custom loop, and was stopped before its first optimizer update."""


class _Updated(BaseException):
    """Leaves the script before its first optimizer update outside of `fit`."""


class _Reached(BaseException):
    """Leaves the script at its fit(); no `except Exception` of the script stops it."""

    def __init__(self, model: Any, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.arguments = model, dict(arguments)


def first_fit(path: str | Path, arguments: Sequence[str] = (), *, quiet: bool = False) -> "FitCall":
    """Runs a script as `python path arguments...` does, up to its first `Model.fit` or `memfit.fit`.

    Args:
        path: The script.
        arguments: What it finds in sys.argv after its name.
        quiet: Whether to hold back what the script prints.

    Returns:
        The model and the arguments of that fit().

    Raises:
        InvalidInput: If there is no such script, it fails before fit(), or it ends without one.
    """
    path = Path(path)
    check_script(path)
    output = io.StringIO() if quiet else sys.stdout
    try:
        with _stopping_at_training(path), _interpreter_restored(), contextlib.redirect_stdout(output):
            run_script(path, arguments)
    except _Reached as reached:
        import keras

        if keras.config.backend() != "tensorflow":
            raise InvalidInput(
                "memfit works with Keras on TensorFlow", received=f"a script on {keras.config.backend()}"
            ) from None
        from memfit.survival.fit_call import FitCall

        return FitCall(reached.model, reached.arguments)
    except _Updated as updated:
        raise TrainsInLoop(
            f"The script trains in a custom loop, not with fit(): it was stopped before its first optimizer "
            f"update ({path.name}, {updated}), and nothing was trained",
            received=str(path),
            remedy=f"Measure it with `memfit estimate {path}`; memfit.gradients makes its gradients fit",
        ) from None
    except SystemExit as end:
        if end.code not in (None, 0):
            raise InvalidInput(
                f"The script ended with exit code {end.code} before it called fit()", received=str(path)
            ) from end
    except Exception as error:  # whatever the user's script raises
        raise InvalidInput(
            f"The script failed before it called fit(): {in_one_line(error)}", received=str(path)
        ) from error
    raise InvalidInput(
        "The script ended and never called model.fit(...) or memfit.fit(model, ...)",
        received=str(path),
        remedy="Give the script that trains; a custom loop can call memfit.estimate(model, batch_size) itself",
    )


@contextlib.contextmanager
def _stopping_at_training(script: Path) -> Iterator[None]:
    def stop_keras(original: Any, model: Any, **arguments: Any) -> None:
        raise _Reached(model, arguments)

    def stop_memfit(module: Any) -> None:
        from memfit.training.running import Runner, install_runner

        class StoppingRunner(Runner):
            def begin(self, model: Any, arguments: Mapping[str, Any]) -> None:
                raise _Reached(model, arguments)

        install_runner(StoppingRunner())
        undo.callback(install_runner, None)

    def stop_loop(line: str) -> None:
        raise _Updated(line)

    def stop(keras: Any) -> None:
        undo.callback(intercept(keras.Model, "fit", stop_keras))
        if keras.config.backend() == "tensorflow":
            undo.callback(before_first_update(keras, script, stop_loop))

    with contextlib.ExitStack() as undo:
        undo.callback(after_import("keras", stop))
        undo.callback(after_import("memfit.training.fitting", stop_memfit))
        yield


@contextlib.contextmanager
def _interpreter_restored() -> Iterator[None]:
    """Gives this process its arguments and main module back after a script.

    The search path stays the script's: the process that records its model imports its modules from there.
    """
    argv, main = sys.argv, sys.modules["__main__"]
    try:
        yield
    finally:
        sys.argv, sys.modules["__main__"] = argv, main
