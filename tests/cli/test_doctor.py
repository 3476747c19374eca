import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memfit.budgets.arena import arena_environment
from memfit.budgets.budget import Budget
from memfit.budgets.diagnosis import Diagnosis, Growth, diagnose, list_findings
from memfit.budgets.memory import Kind, Memory
from memfit.sizes import Size


def _memfit(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memfit", *args]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_it_fits_one_screen_and_ends_with_code_0() -> None:
    done = _memfit("doctor")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) < 40
    for part in ("Memory", "host", "Software", "TensorFlow", "Findings"):
        assert part in done.stdout
    assert "\x1b" not in done.stdout, "no colours outside of a terminal"


def test_json_is_for_programs() -> None:
    seen = json.loads(_memfit("doctor", "--json").stdout)
    assert seen["budget"]["host"]["total"] > 0
    assert seen["tensorflow"].startswith("2.")


def test_an_arena_in_the_shell_is_found_with_the_line_that_ends_it() -> None:
    done = _memfit("doctor", **arena_environment("300MiB"))
    assert done.returncode == 0
    assert "300 MiB" in done.stdout
    assert "unset TF_CPU_ALLOCATOR_USE_BFC" in done.stdout


@pytest.mark.parametrize("args", [["doctor", "--jsn"], ["docter"], ["doctor", "more"]])
def test_wrong_usage_ends_with_code_2_and_no_traceback(args: list[str]) -> None:
    done = _memfit(*args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def _gpu_machine(**changes: object) -> Diagnosis:
    gpu = Memory("GPU:0 NVIDIA T4", Size("15GiB"), Size("2GiB"), "NVML", Kind.GPU)
    host = Memory("host", Size("8GiB"), Size("512MiB"), "cgroup v2 limit", Kind.CONTAINER)
    facts = {
        "budget": Budget((gpu,), host),
        "tensorflow": "2.21.0",
        "keras": "3.15.1",
        "backend": "tensorflow",
        "tensorflow_gpus": 0,
        "growth": Growth.WHOLE_DEVICE,
        "allocator": "BFC",
        "xla": "",
        "environment": {},
    }
    return Diagnosis(**{**facts, **changes})  # type: ignore[arg-type]


def test_findings_stand_in_order_of_weight_each_with_a_line_to_run() -> None:
    listed = list_findings(_gpu_machine())
    assert [finding.weight for finding in listed] == sorted((f.weight for f in listed), reverse=True)
    assert "TensorFlow sees none" in listed[0].what
    text = " ".join(finding.what for finding in listed)
    for part in (
        "nearly all memory of every GPU",
        "2.00 GiB of 15.00 GiB",
        "512 MiB of the host's",
        "container",
    ):
        assert part in text
    assert all(finding.do for finding in listed)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"tensorflow": None}, "not installed"),
        ({"backend": "jax"}, "jax backend"),
        ({"keras": "3.9.0"}, "older than 3.12"),
        ({"tensorflow": "2.18.1"}, "older than 2.19"),
        ({"environment": {"TF_CUDNN_WORKSPACE_LIMIT_IN_MB": "512"}}, "capped at 512 MiB"),
        ({"environment": {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"}}, "turns XLA on"),
    ],
)
def test_each_wrong_setting_has_its_finding(changes: dict[str, object], part: str) -> None:
    assert any(part in finding.what for finding in list_findings(_gpu_machine(**changes)))
    assert not any(part in finding.what for finding in list_findings(_gpu_machine()))


def test_a_gpu_that_grows_needs_no_advice_on_growth() -> None:
    told = " ".join(finding.what for finding in list_findings(_gpu_machine(growth=Growth.GROWS)))
    assert "nearly all memory of every GPU" not in told


def test_the_backend_is_read_as_keras_reads_it(tmp_path: Path) -> None:
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert diagnose({"KERAS_HOME": str(tmp_path)}).backend == "torch"
    assert diagnose({"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "jax"}).backend == "jax"
    assert diagnose({"KERAS_HOME": str(tmp_path / "none")}).backend == "tensorflow"
