"""What keeping the record of a run costs: the same training with and without it, in turn, in one process.

As for the monitor (`cost.py`), noise is as large as the bound, so the parts are timed directly, too, in processor
time: a look, ten times a second; the callback, once a batch; and writing the file, of a run with full series and a
plan's timeline, as often as the recorder does.

    python benchmarks/monitor/records.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import SMOKE, isolated, write
from memfit.tables import table

BOUND = 0.005
ROUNDS, STEPS, LOOKS = (1, 2, 2) if SMOKE else (12, 40, 1000)


def measured(rounds: int = ROUNDS, steps: int = STEPS, looks: int = LOOKS) -> dict[str, float]:
    """Seconds a step with and without a record, and the recorder's own seconds."""
    import statistics
    import tempfile
    import time
    from dataclasses import replace

    import keras
    import numpy as np

    from memfit.training.records.files import write_record
    from memfit.training.records.opening import Place, open_record
    from memfit.training.records.record import Mark, Series
    from memfit.training.records.recorder import Recorder

    blocks = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(4)]
    pooled = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((32, 32, 3)), *blocks, *pooled])
    model.compile("adam", "mse")
    x, y = np.ones((16 * steps, 32, 32, 3), "float32"), np.ones((16 * steps, 10), "float32")
    folder = Path(tempfile.mkdtemp(prefix="memfit-records-"))

    def new() -> Recorder:
        place = Place(folder, "aaaaaa", "memfit.fit")
        given = {"memory": None, "allow": "near", "planning_seconds": None}
        return Recorder(open_record(place, model, {}, None, **given), folder)  # type: ignore[arg-type]

    def epoch(recorded: bool) -> tuple[float, float]:
        # Only whole epochs count: the start of `fit` is the same for both.
        times: list[tuple[float, float]] = []

        def note(epoch: int, logs: object) -> None:
            times.append((time.perf_counter(), time.process_time()))

        clock = keras.callbacks.LambdaCallback(on_epoch_begin=note, on_epoch_end=note)
        recorder = new() if recorded else None
        if recorder is not None:
            recorder.start()
        callbacks = [clock] if recorder is None else [clock, recorder]
        model.fit(x, y, batch_size=16, verbose=0, callbacks=callbacks)
        if recorder is not None:
            recorder.end("finished", "")
        begun, ended = times
        return (ended[0] - begun[0]) / steps, (ended[1] - begun[1]) / steps

    ways = ["stock", "stock again", "recorded"]
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    epoch(False)
    for number in range(rounds):
        for way in ways[number % 3 :] + ways[: number % 3]:
            seconds[way].append(epoch(way == "recorded"))
    recorder = new()
    recorder.start()
    recorder.on_epoch_begin(0)

    def mean(function: object) -> float:
        begun = time.thread_time()
        for _ in range(looks):
            function()  # type: ignore[operator]
        return (time.thread_time() - begun) / looks

    rows = 400
    series = Series(*(tuple(range(rows)) for _ in range(4)))
    marks = tuple(Mark(float(n), "epoch", epoch=n, batch=n, lasted=0.5) for n in range(600))
    large = replace(recorder.record, series=series, marks=marks)
    figures = {
        "look_s": mean(recorder._look),
        "batch_s": mean(lambda: recorder.on_train_batch_end(3)),
        "write_s": mean(lambda: write_record(large, folder)),
        "file_bytes": float(next(folder.glob("*.json")).stat().st_size),
    }
    recorder.end("finished", "")
    for way in ways:
        name = way.replace(" ", "_")
        figures[f"{name}_step_s"] = statistics.median(wall for wall, _ in seconds[way])
        figures[f"{name}_step_cpu_s"] = statistics.median(cpu for _, cpu in seconds[way])
    return figures


def main() -> None:
    """Measures and prints."""
    seen = isolated(measured, memory="1GiB")
    writes = seen["write_s"] / max(2.0, seen["write_s"] / 0.001)
    own = 10 * seen["look_s"] + seen["batch_s"] / seen["stock_step_s"] + writes
    seen["own_share_of_time"] = own
    rows = [
        ["stock step", f"{1e3 * seen['stock_step_s']:.1f} ms"],
        ["stock again", f"{seen['stock_again_step_s'] / seen['stock_step_s']:.3f}x"],
        ["recorded", f"{seen['recorded_step_s'] / seen['stock_step_s']:.3f}x"],
        ["stock again, processor time", f"{seen['stock_again_step_cpu_s'] / seen['stock_step_cpu_s']:.3f}x"],
        ["recorded, processor time", f"{seen['recorded_step_cpu_s'] / seen['stock_step_cpu_s']:.3f}x"],
        ["one look", f"{1e6 * seen['look_s']:.0f} us"],
        ["one batch", f"{1e6 * seen['batch_s']:.1f} us"],
        ["one write of a large record", f"{1e3 * seen['write_s']:.1f} ms"],
        ["own share of time", f"{own:.3%}"],
    ]
    print(table(rows, right=[1]))
    print(f"Wanted: at most {BOUND:.1%} of the step time.")
    print(f"Written to {write('records', seen)}")


if __name__ == "__main__":
    main()
