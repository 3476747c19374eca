"""`memfit run --ray` on a real local Ray cluster (make test-ray); skipped where Ray is not installed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memfit.errors import InvalidInput
from memfit.survival.ray_job import run_on_ray
from scaling.test_surviving import TRAINS

HAS_RAY = importlib.util.find_spec("ray") is not None


def _train(folder: Path, *arguments: str) -> list[object]:
    (folder / "kills").mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(
        TRAINS.replace("import keras\n", "import keras\nkeras.utils.set_random_seed(3)\n", 1)
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "RAY_TRAIN_V2_ENABLED": "1"}
    command = [sys.executable, "-m", "memfit", "run", "--quiet", *arguments, "train.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.skipif(not HAS_RAY, reason="needs memfit[ray]: make test-ray")
def test_ranks_on_ray_give_what_ranks_of_one_machine_give_also_when_one_is_killed(tmp_path: Path) -> None:
    (tmp_path / "ray" / "kills").mkdir(parents=True)
    (tmp_path / "ray" / "kills" / "1-begin-6").write_text(str(int(signal.SIGKILL)))
    on_ray = _train(tmp_path / "ray", "--ray", "--ranks", "2")
    assert not any((tmp_path / "ray" / "kills").iterdir())
    assert on_ray[0] == on_ray[1]
    assert on_ray == _train(tmp_path / "here", "--ranks", "2")


@pytest.mark.skipif(not HAS_RAY, reason="needs memfit[ray]: make test-ray")
def test_a_job_on_ray_that_goes_on_keeps_its_ranks_and_its_memory(tmp_path: Path) -> None:
    def fail(*arguments: str) -> None:
        with pytest.raises(AssertionError):
            _train(tmp_path, "--ray", *arguments)

    def memories() -> list[object]:
        files = sorted(tmp_path.glob(".memfit/train-*-rank?/run.json"))
        return [json.loads(file.read_text())["settings"]["memory"] for file in files]

    (tmp_path / "kills").mkdir()
    for begun in range(6, 40):  # more often than anyone starts a rank again
        (tmp_path / "kills" / f"1-begin-{begun}").write_text(str(int(signal.SIGKILL)))
    fail("--ranks", "2", "--memory", "3GiB")
    assert memories() == ["3GiB", "3GiB"]
    for file in (tmp_path / "kills").iterdir():
        file.unlink()
    first, second = _train(tmp_path, "--ray", "--resume")
    assert first == second


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(InvalidInput, match=r"memfit\[ray\]"):
        run_on_ray(tmp_path / "train.py")
