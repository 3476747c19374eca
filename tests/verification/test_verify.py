"""`memfit verify`: what it says of a machine where all holds, and of one where something does not."""

import json

import numpy as np
import pytest

from memfit.cli.main import main
from memfit.verification import checks, verifying
from memfit.verification.checks import Check, run_checks
from memfit.verification.trainings import (
    NETWORKS,
    Predicted,
    Trained,
    build,
    measure_peaks,
    predict,
    train_stock,
)
from prepared import in_arena

MIB = 2**20
GOOD = Check("peak as predicted", "dense", True, "69 MiB", "69 MiB (-0.1%)", {"measured": 1})
BAD = Check("an OOM is undone", "dense", False, "it trains", "it does not", {})


def trained(value: float, *shortages: str) -> Trained:
    return Trained(1.0, (("kernel", np.full(3, value, "float32")),), "whole batches", shortages)


def run_in_turn(function, *args, memory=None):
    """Stands in for a device: answers as one on which everything goes as it should."""
    if function is predict:
        return {name: Predicted(100 * MIB, 110 * MIB, 60 * MIB, "made up") for name in args[0]}
    if function is measure_peaks:
        return [80 * MIB, 95 * MIB]
    if function.__name__ == "measure_speed":
        return 1.0, 1.01
    events = ("Out of memory in training",) if function.__name__ == "train_unplanned" else ()
    return trained(1.0, *events)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_is_the_same_every_time(name):
    first, second = build(name), build(name)
    assert all(
        np.array_equal(one, two)
        for one, two in zip(first.model.get_weights(), second.model.get_weights(), strict=True)
    )
    assert np.array_equal(first.x, second.x)
    assert len(first.x) == 3 * first.batch_size


def test_everything_holds_where_it_does(monkeypatch):
    monkeypatch.setattr(checks, "run_on_device", run_in_turn)
    done = list(run_checks())
    assert [check.passed for check in done] == [True] * 7
    assert done[0].measured == "80 MiB to 95 MiB (+5.3%)"


@pytest.mark.parametrize(
    ("of", "answer", "measured"),
    [
        ("measure_peaks", [80 * MIB], "80 MiB (+25.0%)"),
        ("measure_peaks", [120 * MIB, 125 * MIB], "120 MiB to 125 MiB (-16.7%)"),
        ("measure_peaks", [0, 0], "this device's allocator does not count memory"),
        ("train_planned", trained(1 + 1e-7), "1 variables differ"),
        (
            "train_planned",
            trained(1.0, "Out of memory"),
            "identical in 60 MiB, but memory ran out on the way",
        ),
        ("train_unplanned", trained(1.0), "nothing ran out in 60 MiB"),
        ("train_unplanned", trained(0.0, "Out of memory"), "within 1e+00"),
        ("train_unplanned", trained(float("nan"), "Out of memory"), "within inf"),
        ("measure_speed", (1.0, 1.2), "1.20x (1000 ms a step)"),
        ("train_planned", MemoryError("the machine has no more"), "MemoryError: the machine has no more"),
    ],
)
def test_what_does_not_hold_is_told(monkeypatch, of, answer, measured):
    def run(function, *args, memory=None):
        if function.__name__ != of:
            return run_in_turn(function, *args)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(checks, "run_on_device", run)
    failed = [check for check in run_checks() if not check.passed]
    assert failed
    assert all(measured in check.measured for check in failed)


def test_where_nothing_can_be_predicted_there_is_one_failed_check(monkeypatch):
    def run(function, *args, memory=None):
        raise RuntimeError("no device\nmore of it")

    monkeypatch.setattr(checks, "run_on_device", run)
    (check,) = run_checks()
    assert (check.passed, check.measured) == (False, "RuntimeError: no device")


@pytest.mark.parametrize(("made", "code"), [([GOOD], 0), ([GOOD, BAD], 1)])
def test_the_command_prints_a_table_and_writes_the_figures(monkeypatch, tmp_path, capsys, made, code):
    monkeypatch.setattr(verifying, "run_checks", lambda: iter(made))
    file = tmp_path / "figures.json"
    assert main(["verify", "--output", str(file)]) == code
    out = capsys.readouterr().out
    assert f"{sum(check.passed for check in made)} of {len(made)} hold" in out
    assert ("please report it" in out) == (code == 1)
    figures = json.loads(file.read_text())
    assert figures["passed"] is (code == 0)
    assert figures["checks"][0]["measured"] == "69 MiB (-0.1%)"
    assert {"memfit", "python", "keras"} <= set(figures["versions"])
    assert main(["verify", "--json", "--force", "--output", str(file)]) == code
    assert json.loads(capsys.readouterr().out)["device"] == figures["device"]


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(verifying, "run_checks", None)
    file = tmp_path / "mine.json"
    file.write_text("mine")
    assert main(["verify", "--output", str(file)]) == 2
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert main(["verify", "--output", str(tmp_path / "no" / "folder.json")]) == 2
    assert "must exist" in capsys.readouterr().err


def test_a_real_training_on_this_machine(monkeypatch):
    """Predicted and measured for real; a busy machine peaks higher, so that only `memfit verify` asks for 12%."""
    monkeypatch.setattr(checks, "isolated", lambda *task, memory, timeout: in_arena(*task, memory=memory))
    predicted = checks.run_on_device(predict, ["dense"])["dense"]
    peaks = checks.run_on_device(measure_peaks, "dense")
    assert 0.7 * min(peaks) < predicted.peak < 1.3 * max(peaks)
    first, second = (checks.run_on_device(train_stock, "dense") for _ in range(2))
    for (name, one), (_, two) in zip(first.variables, second.variables, strict=True):
        assert np.array_equal(one, two), name
    assert len(first.variables) > 20  # of both, with the states of three dropouts of equal names
