"""`memfit top`: attached to what runs, on a real terminal and for programs."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from memfit.budgets.memory import Kind, Memory
from memfit.budgets.nvml import GpuProcess
from memfit.cli.main import main
from memfit.reporting.live import draw_snapshot
from memfit.sizes import Size
from memfit.training.records import watching
from memfit.training.records.files import write_record
from memfit.training.records.record import RUNNING, Mark, RunRecord, this_process
from reporting.sample_runs import MIB, a_run

_LEAK = Mark(500.0, "leak", "Host memory grew by 8.0 MiB an epoch, 4 epochs in a row.", epoch=9)


def _running(**changes: Any) -> RunRecord:
    """A run that this process is said to train."""
    now = time.time()
    record = a_run(outcome=RUNNING, begun=now - 600, updated=now - 1, ended=None, process=this_process())
    return replace(record, epoch=9, batch=45, **changes)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMFIT_RUNS", str(tmp_path))
    return tmp_path


def _draw(width: int = 120) -> str:
    screen = Console(width=width, force_terminal=False, highlight=False)
    with screen.capture() as captured:
        screen.print(draw_snapshot(watching.look(), live=True))
    return captured.get()


def test_nothing_runs_and_that_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(a_run(outcome=RUNNING, ended=None), runs)  # its process is gone
    write_record(a_run(id="bbbbbb", process=this_process()), runs)  # it has ended
    assert main(["top", "--once"]) == 0
    assert "No memfit training is running on this machine." in capsys.readouterr().out


def test_a_training_is_shown_with_device_host_progress_events_and_leak(runs: Path) -> None:
    record = _running()
    write_record(replace(record, marks=(*record.marks, _LEAK)), runs)
    shown = _draw()
    assert "3fa9c1  mobilenetv2 (train.py), batch size 64, 10 min" in shown
    assert re.search(r"device .* MiB now, peak 297 MiB, predicted 306 MiB, budget 400 MiB", shown)
    assert re.search(r"host  .* now, limit [\d.]+ GiB", shown)
    assert "epoch 10 of 50, batch 45, 83 ms a step" in shown
    assert "out of memory: 2, restarts: 1" in shown
    assert "Host memory grew by 8.0 MiB an epoch" in shown


def test_a_narrow_terminal_gets_shorter_lines_and_not_more_of_them(runs: Path) -> None:
    write_record(_running(), runs)
    wide, narrow = _draw(120).splitlines(), _draw(60).splitlines()
    assert len(narrow) == len(wide)
    assert max(map(len, narrow)) <= 60


def test_for_programs_it_is_plain_data_with_the_memory_of_the_process_now(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(_running(), runs)
    assert main(["top", "--json"]) == 0
    (training,) = json.loads(capsys.readouterr().out)["trainings"]
    assert training["pid"] == os.getpid()
    assert training["device"]["predicted"] == int(a_run().predicted or 0)
    assert training["device"]["budget"] == 400 * MIB
    assert 10 * MIB < training["host"]["now"] < training["host"]["limit"]["total"]
    assert (training["epoch"], training["batch"], training["shortages"]) == (9, 45, 2)


def test_others_on_a_gpu_are_listed_beside_ones_own(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_record(_running(), runs)
    own, other = os.getpid(), os.getppid()
    found = [GpuProcess(own, "GPU:0 T4", Size(900 * MIB)), GpuProcess(other, "GPU:0 T4", Size(2**30))]
    monkeypatch.setattr(watching, "gpu_processes", lambda: [*found, GpuProcess(2**22, "GPU:1 T4", None)])
    card = Memory("GPU:0 T4", Size(15 * 2**30), Size(13 * 2**30), "NVML", Kind.GPU)
    budget = watching.budget()
    monkeypatch.setattr(watching, "budget", lambda: replace(budget, devices=(card,)))
    shown = _draw()
    assert "driver 900 MiB" in shown
    assert f"GPU:0 T4  1.00 GiB  {watching._name(other)} (pid {other})" in shown
    assert f"GPU:1 T4  not reported by the driver  not known (pid {2**22})" in shown
    assert "2.00 GiB of 15.00 GiB in use (NVML)" in shown


def test_on_a_terminal_it_stays_until_q_is_pressed(runs: Path) -> None:
    write_record(_running(), runs)
    terminal, other_end = pty.openpty()
    command = [sys.executable, "-m", "memfit", "top"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(command, stdin=other_end, stdout=other_end, stderr=other_end, env=environment)
    os.close(other_end)
    try:
        shown = _read_until(terminal, "predicted 306 MiB")
        assert "q quits" in shown
        assert process.poll() is None
        os.write(terminal, b"x")
        _read_until(terminal, "memfit top")  # another key, and it goes on
        os.write(terminal, b"yq")
        _read_until(terminal, "\x1b[?1049l")  # the screen is as it was
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def _read_until(terminal: int, text: str, seconds: float = 60.0) -> str:
    seen, end = "", time.monotonic() + seconds
    while text not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                seen += os.read(terminal, 2**16).decode(errors="replace")
            except OSError:  # the other end is closed
                break
    assert text in seen, seen
    return seen
