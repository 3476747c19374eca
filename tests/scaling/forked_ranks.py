"""`memfit run` whose processes are forks that have TensorFlow imported: a start costs next to nothing."""

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from prepared import run_forked


class ForkedScript:
    """As much of `survival.script_process.ScriptProcess` as the supervisor uses."""

    def __init__(
        self, script: Path, arguments: Sequence[str], environment: Mapping[str, str], rank: int = 0
    ) -> None:
        self.rank, self.pid = rank, 0
        self._folder = Path(tempfile.mkdtemp(prefix="memfit-rank-"))
        self._code: int | None = None
        variables = {"TF_ENABLE_ONEDNN_OPTS": "0", **environment}
        command = (str(script.resolve()), list(arguments), str(Path.cwd()), str(self._folder))

        def run() -> None:
            self._code = run_forked(_run_script, *command, **variables)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        while not (self._folder / "pid").exists():
            assert self._thread.is_alive()
            time.sleep(0.02)
        self.pid = int((self._folder / "pid").read_text())

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def poll(self) -> int | None:
        return self._code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._thread.join()

    def end_copying(self) -> None:
        sys.stderr.write(self.log)  # pytest shows it where a test fails

    def show_log(self) -> None:
        pass


def _run_script(script: str, arguments: list[str], directory: str, folder: str) -> int:
    """Runs a script in a child of this process, which is one itself and can tell how the child ends."""
    child = os.fork()
    if child == 0:
        _become_script(script, arguments, directory, folder)
    unfinished = Path(folder, "pid.unfinished")
    unfinished.write_text(str(child))
    unfinished.rename(Path(folder, "pid"))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become_script(script: str, arguments: list[str], directory: str, folder: str) -> None:
    from memfit.survival.child_process import main

    os.setpgid(0, 0)
    os.chdir(directory)
    log = os.open(Path(folder, "log"), os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.path.insert(0, "")  # what `python -m` puts there
    code = 1
    try:
        main([script, *arguments])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
