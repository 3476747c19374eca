"""What can be seen to be wrong is refused before TensorFlow is imported, whose greetings drown no command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ASKS = """
import sys
from memfit.cli.main import main
code = main(sys.argv[1:])
print("imported:", sorted({"tensorflow", "keras"} & set(sys.modules)))
sys.exit(code)
"""


def memfit(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command in a process that starts for real; it says at the end whether it imported TensorFlow."""
    switches = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")
    environment = {name: value for name, value in os.environ.items() if name not in switches}
    return subprocess.run(
        [sys.executable, "-c", _ASKS, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", ["estimate", "plan", "slim", "lint", "run"])
def test_a_path_that_is_no_file_is_refused_at_once(tmp_path: Path, command: str) -> None:
    done = memfit(tmp_path, command, ".")
    assert (done.returncode, done.stdout) == (2, "imported: []\n")
    assert done.stderr == (
        "memfit: That is a folder. Received: '.'. Give the script inside it, such as ./train.py.\n"
    )
    done = memfit(tmp_path, command, "missing.py")
    assert (done.returncode, done.stdout) == (2, "imported: []\n")
    assert "There is no such script" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["estimate", "model.keras"], "There is no such file"),
        (["plan", "train.py", "--memory", "120%"], "at most 100"),
        (["slim", "train.py", "--memory", "120%"], "at most 100"),
        (["run", "--memory", "0", "train.py"], "more than no memory"),
        (["plan", "train.py", "--memory", "0"], "more than no memory"),
        (["lint", "--host", "much", "train.py"], "not a size"),
        (["estimate", "train.py", "--memory", "much"], "not a size"),
        (["estimate", "train.py", "--device", "RTX 3065"], "Did you mean RTX 3060"),
    ],
)
def test_bad_options_are_refused_at_once(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "train.py").write_text("import tensorflow")
    done = memfit(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "imported: []\n")
    assert words in done.stderr


NOTHING_TO_TRAIN = "import os, sys\nassert 'tensorflow' not in sys.modules\nimport tensorflow, keras\n"


@pytest.mark.parametrize("command", ["estimate", "plan", "slim", "lint"])
def test_a_script_finds_tensorflow_not_yet_imported_and_its_greetings_drown_nothing(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "train.py").write_text(NOTHING_TO_TRAIN)
    done = memfit(tmp_path, command, "train.py")
    assert done.stdout == "imported: ['keras', 'tensorflow']\n"
    *progress, line = done.stderr.splitlines()
    assert all(told.startswith("memfit: building the model, ") for told in progress)
    assert line.startswith("memfit: The script ended and never called model.fit")
