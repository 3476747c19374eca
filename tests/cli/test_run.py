"""`memfit run` on the command line, for scripts without TensorFlow; `test_supervising.py` trains."""

import subprocess
import sys
from pathlib import Path

import pytest

from memfit.cli.main import main


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "memfit", "run", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_script_that_never_trains_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("value = 3\n")
    (tmp_path / "script.py").write_text("import sys, other\nprint(sys.argv)\nsys.exit(other.value)\n")
    done = run(tmp_path, "--memory", "1GiB", "script.py", "--memory", "x", "-h")
    assert (done.returncode, done.stdout, done.stderr) == (3, "['script.py', '--memory', 'x', '-h']\n", "")


def test_nothing_stays_behind_a_script_that_ended_well(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print(open(0).read())")
    done = run(tmp_path, "script.py")
    assert done.returncode == 0
    assert done.stderr == "memfit: Nothing was trained under memfit: the script never called fit().\n"
    assert run(tmp_path, "--quiet", "script.py").stderr == ""
    assert not (tmp_path / ".memfit").exists()


@pytest.mark.parametrize("command", ["run", "lint"])
def test_only_what_is_missing_is_asked_for(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command])
    assert capsys.readouterr().err.endswith("the following arguments are required: script\n")


def test_what_it_cannot_run_is_said_in_a_line(tmp_path: Path) -> None:
    missing = run(tmp_path, "missing.py")
    assert missing.returncode == 2
    assert missing.stderr == "memfit: There is no such script. Received: 'missing.py'.\n"
    (tmp_path / "script.py").write_text("")
    wrong = run(tmp_path, "--memory", "much", "script.py")
    assert wrong.returncode == 2
    assert "not a size" in wrong.stderr
