import json
import subprocess
import sys
from pathlib import Path

import pytest

_LOG = Path(__file__).parents[1] / "oom" / "oom_texts" / "gpu_bfc_fragmented_tf2.4.txt"


def _explain(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "memfit", "explain", *args]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


def test_a_log_file_is_explained() -> None:
    done = _explain(str(_LOG))
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"fragmentation" in done.stdout
    assert b"TF_GPU_ALLOCATOR=cuda_malloc_async python train.py" in done.stdout


@pytest.mark.parametrize("args", [[], ["-"]])
def test_the_standard_input_is_read_torn_bytes_included(args: list[str]) -> None:
    done = _explain(*args, stdin=b"\xff\xfe torn\n" + _LOG.read_bytes())
    assert done.returncode == 0
    assert b"fragmentation" in done.stdout


def test_json_is_for_programs() -> None:
    told = json.loads(_explain("--json", str(_LOG)).stdout)
    assert told["ran_out"] == "block"
    assert told["requested"] == 2**30
    assert told["asked"]["layer"] == "block2_conv1"
    assert len(told["changes"]) == 3


def test_an_unknown_text_ends_with_code_1() -> None:
    done = _explain(stdin=b"all is well\n")
    assert done.returncode == 1
    assert b"unknown" in done.stdout


def test_a_wrong_path_ends_with_code_2_and_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path):
        done = _explain(str(path))
        assert done.returncode == 2
        assert b"cannot be read" in done.stderr
        assert b"Traceback" not in done.stderr
