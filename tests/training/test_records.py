"""Run records: small files that are written whole, found by what a person types, and bounded in number."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import memfit
from memfit.training.records.files import (
    find_record,
    read_record,
    read_records,
    records_folder,
    remove_oldest,
    write_record,
)
from memfit.training.records.host_prediction import BEFORE, STEP
from memfit.training.records.record import Mark, Process, RunRecord, Series, this_process
from memfit.training.records.series import SeriesBuilder, thin_out
from memfit.training.records.surroundings import environment_variables
from prepared import in_arena


def a_record(identity: str = "3fa9c1", begun: float = 1.7e9) -> RunRecord:
    return RunRecord(
        id=identity,
        begun=begun,
        updated=begun + 5,
        process=this_process(),
        model="net",
        batch_size=8,
        device_peak=memfit.Size("12MiB"),
        series=Series((0.5, 1.0), (None, 3), (7, 8), (0, 4)),
        marks=(Mark(0.1, "epoch", epoch=0, lasted=0.5), Mark(0.7, "out of memory", "Out of memory.", 0, 3)),
    )


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = a_record()
    path = write_record(record, tmp_path / "runs")
    assert read_record(path) == record
    assert [file.name for file in path.parent.iterdir()] == ["20231114-221320-3fa9c1.json"]
    assert "12 MiB (measured)" in repr(record)
    assert "Out of memory." in repr(record)


def test_records_are_found_by_what_a_person_types(tmp_path: Path) -> None:
    for number, identity in enumerate(("aa1111", "ab2222", "cc3333")):
        write_record(a_record(identity, 1.7e9 + number), tmp_path)
    (tmp_path / "20990101-000000-ffffff.json").write_text("{}")  # not a record
    assert [record.id for _, record in read_records(tmp_path)] == ["cc3333", "ab2222", "aa1111"]
    for name, identity in (("last", "cc3333"), ("last-2", "aa1111"), ("ab", "ab2222")):
        path, record = find_record(name, tmp_path)
        assert record.id == identity
        assert find_record(str(path))[1] == record
    for name in ("a", "x", "last-7", "last-x"):
        with pytest.raises(memfit.InvalidInput, match="memfit runs"):
            find_record(name, tmp_path)
    remove_oldest(tmp_path, 2)
    assert [record.id for _, record in read_records(tmp_path)] == ["cc3333"]


def test_where_they_are_is_told_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMFIT_RUNS", "0")
    assert records_folder() is None
    assert memfit.runs() == []
    monkeypatch.setenv("MEMFIT_RUNS", str(tmp_path))
    assert records_folder() == tmp_path
    monkeypatch.delenv("MEMFIT_RUNS")
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path / "cache"))
    assert records_folder() == tmp_path / "cache" / "runs"
    for name in ("MEMFIT_RUNS", "MEMFIT_CACHE"):
        monkeypatch.setenv(name, "1")  # on, not a folder of that name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert records_folder() == tmp_path / "memfit" / "runs"


def test_a_run_whose_process_is_gone_has_died() -> None:
    record = a_record()
    assert record.state == "running"
    gone = Process(record.process.pid, record.process.started - 100, record.process.machine)
    assert replace(record, process=gone).state == "died"
    elsewhere = replace(record.process, machine="another")
    assert replace(record, process=elsewhere).state == "died"
    assert replace(record, process=gone, outcome="finished").state == "finished"


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = write_record(a_record(), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(memfit.InvalidInput, match="another version"):
        read_record(path)
    path.write_text("half a fi")
    with pytest.raises(memfit.InvalidInput, match="no record"):
        read_record(path)


def test_environment_variables_are_taken_by_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("TF_GPU_ALLOCATOR", "cuda_malloc_async")
    assert environment_variables()["TF_GPU_ALLOCATOR"] == "cuda_malloc_async"
    assert "secret" not in str(environment_variables())
    assert set(environment_variables()) <= set(os.environ)


def _train(folder: str) -> dict[str, Any]:
    """Everything in one process in an arena, since starting TensorFlow takes most of the time."""
    import contextlib
    import io

    import keras
    import numpy as np
    import tensorflow as tf

    from memfit.planning.does_not_fit import DoesNotFit
    from memfit.planning.fidelity import Fidelity
    from memfit.training import plan_choice

    os.environ["MEMFIT_RUNS"] = folder
    os.environ["SECRET_TOKEN"] = "hush"
    x, y = np.ones((64, 32), "float32"), np.ones((64, 4), "float32")
    layers = [keras.layers.Dense(256, "relu"), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input((32,)), *layers], name="net")
    model.compile("sgd", "mse", jit_compile=False)
    seen: dict[str, Any] = {}

    def fit(*callbacks: Any, **options: Any) -> tuple[str, Any]:
        printed = io.StringIO()
        history, error = None, None
        with contextlib.redirect_stdout(printed):
            try:
                history = memfit.fit(model, x, y, batch_size=8, callbacks=list(callbacks), **options)
            except BaseException as raised:
                error = type(raised).__name__
        return printed.getvalue(), error or history

    class Ends(keras.callbacks.Callback):
        def __init__(self, error: BaseException) -> None:
            super().__init__()
            self.error = error

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                raise self.error

    seen["told"], history = fit(epochs=3, validation_split=0.25, memory="200MiB", verbose=2)
    fit(epochs=3, validation_split=0.25, memory="200MiB", verbose=2)  # the optimizer's state is there now
    seen["told again"] = fit(epochs=3, validation_split=0.25, memory="200MiB", verbose=2)[0]
    seen["silent"] = fit(epochs=1, memory="150MiB", verbose=0)[0]
    seen["file"] = str(history.memory.record)
    seen["measured"] = int(history.memory.measured)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat(2).shuffle(8).batch(8)
    memfit.fit(model, dataset, verbose=0)
    seen["interrupted"] = fit(Ends(KeyboardInterrupt()), verbose=0)[1]
    seen["failed"] = fit(Ends(ValueError("the password is hush")), verbose=0)[1]

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise DoesNotFit("It does not fit.", memfit.Size(9), 1, Fidelity.NEAR)

    own, plan_choice.make_plan = plan_choice.make_plan, refuse
    seen["refused"] = fit(verbose=0, memory="100MiB")[1]
    plan_choice.make_plan = own
    listed = keras.callbacks.CallbackList([], add_history=True, model=model, epochs=1, steps=8, verbose=0)
    memfit.fit(model, x, y, batch_size=8, callbacks=listed, verbose=0)
    seen["callbacks left"] = [type(callback).__name__ for callback in listed.callbacks]
    os.environ["MEMFIT_RUNS"] = "/proc/nowhere"
    seen["unwritable"] = type(fit(verbose=0)[1]).__name__
    return seen


def test_every_fit_leaves_a_record_and_says_its_plan(tmp_path: Path) -> None:
    seen = in_arena(_train, str(tmp_path / "runs"), memory="256MiB")
    lines = [line for line in seen["told"].splitlines() if line.startswith("memfit: ")]
    assert lines[0] == "memfit: fit(): net, batch 8, 3 epochs, in 200 MiB"
    assert lines[1].endswith("(at most); fits, nothing is changed")
    assert len(lines) == 2
    assert "memfit: " not in seen["told again"]  # the same plan again
    assert seen["silent"] == ""
    assert seen["callbacks left"] == ["History"]
    assert seen["unwritable"] == "History"

    texts = [path.read_text() for path in (tmp_path / "runs").iterdir()]
    assert max(map(len, texts)) < 100_000
    assert not any("hush" in text or str(tmp_path) in text for text in texts)
    records = [record for _, record in read_records(tmp_path / "runs")]
    outcomes = {record.outcome: record for record in records}
    assert [record.outcome for record in reversed(records)] == [
        *["finished"] * 5,
        "interrupted",
        "failed",
        "refused",
        "finished",
    ]
    assert outcomes["failed"].says == "The script failed with ValueError."
    assert outcomes["refused"].says == "It does not fit."

    first = read_record(Path(seen["file"]))
    assert first == records[-1]
    assert (first.model, first.batch_size, first.memory) == ("net", 8, memfit.Size("200MiB"))
    assert (first.memory_source, first.device, first.command) == ("asked for", "CPU:0", "memfit.fit")
    assert (first.steps, first.epoch, first.batch) == (18, 2, 6)
    assert [mark.kind for mark in first.marks] == ["validation", "epoch"] * 3
    assert first.device_peak == seen["measured"]
    assert first.host_peak is not None
    assert first.step_seconds is not None
    assert max(size for size in first.series.device if size is not None) == first.device_peak
    assert first.plan is not None
    assert (first.facts["data"], first.facts["steps_per_epoch"]) == ("ndarray", 6)
    assert first.host_predicted is not None
    assert set(first.host_parts) == {BEFORE, STEP}
    assert first.host_parts[STEP] <= first.plan.predicted
    assert first.facts["parameters"] == 32 * 256 + 256 + 256 * 4 + 4
    [linted] = [record for record in records if record.findings is not None]
    assert linted.findings is not None
    assert linted.findings[0]["name"] == "training data"


def test_a_long_run_has_a_bounded_number_of_rows_and_marks() -> None:
    builder = SeriesBuilder()
    for number in range(5000):
        builder.add(number / 2, None if number % 2 else number, 5000 - number, number)
    series = builder.build()
    assert 100 < len(series) <= 400
    assert series.seconds[-1] == 2499.5
    assert (max(size or 0 for size in series.device), max(series.host)) == (4998, 5000)
    assert builder.interval >= 8
    assert SeriesBuilder(series).interval == 8  # the next process goes on
    marks: list[Mark] = []
    for number in range(5000):
        marks = thin_out([*marks, Mark(number, "death" if number == 7 else "epoch")])
    assert len(marks) <= 600
    assert marks[-1].seconds == 4999
    assert [mark.seconds for mark in marks if mark.kind == "death"] == [7]
