"""Running a training script as Python itself would, and acting when it imports a module.

Nothing is imported here that the script may want to configure first.
"""

import builtins
import ctypes
import importlib.util
import signal
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memfit.errors import InvalidInput

_DIE_WITH_PARENT = 1  # prctl(2): PR_SET_PDEATHSIG


def check_script(script: Path) -> None:
    """Refuses a script that is not there."""
    if script.is_dir():
        raise InvalidInput(
            "That is a folder",
            received=str(script),
            remedy=f"Give the script inside it, such as {str(script).rstrip('/')}/train.py",
        )
    if not script.is_file():
        raise InvalidInput("There is no such script", received=str(script))


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Runs a script in this process as `python script arguments...` does.

    `sys.argv`, `sys.path` and the module `__main__` are the script's from then on: threads and exit handlers
    that it leaves behind may need them.

    Args:
        script: The script.
        arguments: What it finds in `sys.argv` after its name.

    Raises:
        BaseException: Whatever the script raises.
    """
    file = str(script.absolute())
    module = types.ModuleType("__main__")
    vars(module).update(__file__=file, __builtins__=builtins, __spec__=None, __cached__=None)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    sys.modules["__main__"] = module
    exec(compile(script.read_bytes(), file, "exec", dont_inherit=True), vars(module))


def end_with_parent() -> None:
    """Lets the kernel send this process SIGTERM when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)


def after_import(name: str, action: Callable[[Any], Any]) -> Callable[[], None]:
    """Calls an action with a module as soon as it has been imported: at once where it is there already.

    Args:
        name: The module's name.
        action: What to do with it.

    Returns:
        What takes the wish back, where the module has not been imported.
    """
    if name in sys.modules:
        action(sys.modules[name])
        return lambda: None

    searching = False

    class Finder:
        @staticmethod
        def find_spec(wanted: str, path: Any = None, target: Any = None) -> Any:
            nonlocal searching
            if wanted != name or searching:
                return None
            searching = True  # the other finders must find it now
            try:
                spec = importlib.util.find_spec(name)
            finally:
                searching = False
            # It stays until the module is there: TensorFlow looks whether there is a Keras before it is imported.
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def execute_and_act(module: types.ModuleType) -> None:
                    forget()
                    execute(module)
                    action(module)

                spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
            return spec

    def forget() -> None:
        if Finder in sys.meta_path:
            sys.meta_path.remove(Finder)

    sys.meta_path.insert(0, Finder)
    return forget
