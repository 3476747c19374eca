import contextlib
import csv
import io
import json
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from memfit.training.monitoring.growth import find_steady_growth
from prepared import in_arena

_MIB = 2**20


def _watch() -> dict[str, Any]:
    """Everything in one process in an arena, since starting TensorFlow takes most of the time."""
    import keras
    import numpy as np
    import tensorflow as tf

    from memfit import MemoryMonitor
    from memfit.budgets.peaks import PeakMeter, device_name

    random = np.random.default_rng(1)
    x, y = random.random((64, 64, 64, 3), "float32"), random.random((64, 1), "float32")

    def model() -> Any:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Conv2D(64, 3, padding="same"), keras.layers.GlobalAveragePooling2D()]
        made = keras.Sequential([keras.Input((64, 64, 3)), *layers, keras.layers.Dense(1)])
        made.compile("sgd", "mse", metrics=["mae"])
        return made

    class Logs(keras.callbacks.Callback):
        """Keeps every log that another callback sees."""

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen.append((batch, dict(logs)))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seen.append((epoch, dict(logs)))

    def train(callbacks: list[Any], **options: Any) -> tuple[Any, str]:
        # Validation takes one batch of 64, training batches of 8: its peak must be the higher one.
        shown = io.StringIO()
        options = {"verbose": 1, "epochs": 2, **options}
        with contextlib.redirect_stdout(shown):
            history = model().fit(
                x,
                y,
                batch_size=8,
                validation_data=(x, y),
                validation_batch_size=64,
                callbacks=callbacks,
                **options,
            )
        return history.history, shown.getvalue()

    seen: dict[str, Any] = {}
    plain, monitored, monitor = Logs(), Logs(), MemoryMonitor()
    stock, stock_shown = train([plain])
    with PeakMeter(device_name()) as meter:
        mine, seen["shown"] = train([monitored, monitor])
    seen["same history"] = stock == mine
    seen["same logs"] = plain.seen == monitored.seen
    seen["same progress"] = _without_figures(seen["shown"]) == _without_figures(stock_shown)
    seen["record"] = monitor.record.to_json()
    seen["repr"] = repr(monitor.record)
    seen["meter"], seen["device peak"] = int(meter.peak), int(monitor.record.device_peak or 0)
    seen["silent"] = train([MemoryMonitor()], verbose=0)[1]
    seen["short"] = train([MemoryMonitor()], verbose=2)[1]

    with tempfile.TemporaryDirectory() as folder:
        logging = MemoryMonitor(log=True)
        table = keras.callbacks.CSVLogger(f"{folder}/log.csv")
        board = keras.callbacks.TensorBoard(folder, update_freq=4)
        history, _ = train([logging, table, board], verbose=0)
        seen["logged"] = history
        seen["table"] = list(csv.DictReader(Path(folder, "log.csv").read_text().splitlines()))
        seen["board"] = _read_events(Path(folder, "train"))
        seen["logged record"] = logging.record.to_json()

    alone = MemoryMonitor()
    net = model()
    net.evaluate(x, y, verbose=0, callbacks=[alone])
    net.predict(x, verbose=0, callbacks=[alone])
    seen["alone"] = [phase.phase for phase in alone.record.phases]

    kept: list[Any] = []

    def keep_arrays(epoch: int, logs: Any) -> None:
        kept.append(np.full(8 * _MIB // 4, epoch, "float32"))

    def keep_tensors(epoch: int, logs: Any) -> None:
        kept.append(tf.fill([_MIB // 4], float(epoch)))

    for name, leak in (
        ("arrays", keep_arrays),
        ("tensors", keep_tensors),
        ("none", lambda epoch, logs: None),
    ):
        watching = MemoryMonitor()
        leaking = keras.callbacks.LambdaCallback(on_epoch_end=leak)
        net.fit(x[:8], y[:8], epochs=8, verbose=0, callbacks=[leaking, watching])
        seen[f"leak of {name}"] = watching.record.to_json()["growths"]
        kept.clear()
    return seen


def _read_events(folder: Path) -> dict[str, list[float]]:
    """The scalars that TensorBoard would show, by its own reader."""
    import tensorflow as tf
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
        if "GiB" in tag
    }


def _without_figures(shown: str) -> list[str]:
    """The final line of each epoch without times, memory, and the signs that redraw it."""
    lines = re.sub("\x1b\\[[0-9]*m|\x08|\r", "\n", shown).splitlines()
    metrics = [re.findall(r"(\w+): ([-+.e\d]+)", line) for line in lines if "val_loss" in line]
    return [str([pair for pair in found if not pair[0].endswith("_GiB")]) for found in metrics]


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return _watched()


@cache
def _watched() -> dict[str, Any]:
    return in_arena(_watch, memory="600MiB")


def test_other_callbacks_and_the_history_see_what_they_see_without_it(seen: dict[str, Any]) -> None:
    assert seen["same history"]
    assert seen["same logs"]


def test_the_progress_bar_is_keras_with_two_more_figures(seen: dict[str, Any]) -> None:
    assert seen["same progress"]
    assert re.search(r"mae: [\d.]+ .*device_GiB: 0\.\d{4} - host_GiB: \d\.\d{4}", seen["shown"])
    assert "device_GiB" in seen["short"], "verbose=2 shows it too"
    assert seen["silent"] == ""


def test_asked_to_log_it_gives_its_figures_to_tensorboard_csv_and_the_history(seen: dict[str, Any]) -> None:
    peaks = [
        max(phase["device_peak"] for phase in seen["logged record"]["phases"] if phase["epoch"] == epoch)
        for epoch in (0, 1)
    ]
    assert [size * 2**30 for size in seen["logged"]["device_GiB"]] == pytest.approx(peaks)
    assert [float(row["device_GiB"]) for row in seen["table"]] == seen["logged"]["device_GiB"]
    assert [float(row["host_GiB"]) for row in seen["table"]] == seen["logged"]["host_GiB"]
    assert seen["board"]["epoch_device_GiB"] == pytest.approx(seen["logged"]["device_GiB"])
    assert seen["board"]["epoch_host_GiB"] == pytest.approx(seen["logged"]["host_GiB"])
    # A figure every four batches or so, as Keras's version counts: of the epoch so far, so not above the epoch's.
    assert len(seen["board"]["batch_device_GiB"]) >= 2
    assert 0 < seen["board"]["batch_device_GiB"][0] <= seen["logged"]["device_GiB"][0]


def test_every_epoch_has_its_training_and_its_validation(seen: dict[str, Any]) -> None:
    phases = seen["record"]["phases"]
    assert [(phase["epoch"], phase["phase"]) for phase in phases] == [
        (epoch, phase) for epoch in (0, 1) for phase in ("train", "validate")
    ]
    for phase in phases:
        assert 0 < phase["device"] <= phase["device_peak"] < 600 * _MIB
        assert 0 < phase["host"] <= phase["host_peak"]
    train, validate = phases[2:]
    # 64 channels of 64x64 floats for a batch of 64 are 64 MiB; training has an eighth of that at a time.
    assert validate["device_peak"] > train["device_peak"] + 8 * _MIB
    assert seen["alone"] == ["evaluate", "predict"]


def test_a_meter_around_it_keeps_the_peak_that_the_monitor_resets(seen: dict[str, Any]) -> None:
    assert seen["meter"] >= seen["device peak"] > 64 * _MIB


def test_the_record_is_a_table_and_plain_data(seen: dict[str, Any]) -> None:
    lines = seen["repr"].splitlines()
    assert lines[0].split() == ["epoch", "phase", "CPU:0", "peak", "host", "peak"]
    assert len(lines) == 6
    assert json.loads(json.dumps(seen["record"])) == seen["record"]


def test_a_leak_of_arrays_is_found_on_the_host_with_its_size(seen: dict[str, Any]) -> None:
    (growth,) = (found for found in seen["leak of arrays"] if found["where"] == "host")
    assert growth["per_epoch"] == pytest.approx(8 * _MIB, rel=0.3)
    assert growth["epochs"] >= 4
    assert growth["what"][0] == "8.0 MiB of NumPy arrays an epoch"


def test_a_leak_of_tensors_is_found_on_the_device(seen: dict[str, Any]) -> None:
    (growth,) = (found for found in seen["leak of tensors"] if found["where"] == "device")
    assert growth["per_epoch"] == pytest.approx(_MIB, rel=0.3)
    assert growth["what"][0] == "1.0 MiB of TensorFlow tensors an epoch"


def test_a_healthy_training_is_left_in_peace(seen: dict[str, Any]) -> None:
    assert seen["leak of none"] == []


@pytest.mark.parametrize(
    ("sizes", "leaks"),
    [
        ([100, 200, 300, 400, 500, 600], True),
        ([100, 200, 300, 400, 500], False),  # the first epoch does not count: three steps
        ([900, 200, 300, 400, 500, 600], True),
        ([100, 500, 700, 800, 850, 875], False),  # a cache that fills up
        ([100, 200, 300, 250, 350, 450, 550], False),  # it went down in between
        ([100, 200, 300, 250, 350, 450, 550, 650], True),
        ([100, 200, 200, 200, 200, 200, 200], False),
    ],
)
def test_only_steady_growth_is_a_leak(sizes: list[int], leaks: bool) -> None:
    found = find_steady_growth("host", [size * _MIB for size in sizes])
    assert (found is not None) == leaks
    assert found is None or found[0] == 100 * _MIB


def _log_to_wandb(folder: str) -> dict[str, float]:
    import keras
    import numpy as np
    import wandb
    from wandb.integration.keras import WandbMetricsLogger

    from memfit import MemoryMonitor

    net = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    net.compile("sgd", "mse", jit_compile=False)
    with wandb.init(project="memfit", mode="offline", dir=folder) as run:
        callbacks = [MemoryMonitor(log=True), WandbMetricsLogger()]
        net.fit(np.ones((16, 8)), np.ones((16, 4)), verbose=0, callbacks=callbacks)
        return {name: run.summary[name] for name in ("epoch/loss", "epoch/host_GiB", "epoch/device_GiB")}


def test_weights_and_biases_gets_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    logged = in_arena(_log_to_wandb, str(tmp_path), memory="64MiB")
    assert all(value > 0 for value in logged.values())
