"""Inputs on the host under `memfit run`: the samples come in the order that it gives without, kills included."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from memfit.survival.settings import RunSettings
from memfit.survival.supervising import supervise

# Nothing is seeded: `memfit run` gives arrays an order that it can repeat.
TRAINS = """
import json, os, pathlib, signal, sys
from dataclasses import replace
import keras, memfit
import numpy as np

class Witness(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = 0
        self.losses = []
    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        self.losses.append(logs["loss"])
        kill = pathlib.Path("kill")
        if kill.exists() and self.seen == int(kill.read_text()):
            kill.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

x, y = np.random.normal(size=(44, 6)), np.random.normal(size=(44, 1))
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", jit_compile=False)
plan = memfit.plan(model, 8, memory="1GiB")  # nothing to change
if sys.argv[1] == "host":
    plan = replace(plan, recipe=replace(plan.recipe, inputs_on_host=True, micro_batch=3))
witness = Witness()
history = memfit.fit(model, x, y, epochs=3, verbose=0, callbacks=[witness], validation_split=0.1, plan=plan)
told = {
    "weights": [weight.tolist() for weight in model.get_weights()],
    "history": history.history,
    "losses": witness.losses,
    "host": history.memory.plan.recipe.inputs_on_host,
    "events": [str(event) for event in history.memory.events],
}
pathlib.Path("result.json").write_text(json.dumps(told))
"""


def test_a_run_that_was_killed_ends_as_one_with_inputs_on_the_device_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RunSettings(checkpoint_seconds=0.0, seed=7)
    results, said = {}, {}
    for way in ("device", "host"):
        folder = tmp_path / way
        folder.mkdir()
        (folder / "train.py").write_text(TRAINS)
        if way == "host":
            (folder / "kill").write_text("8")  # in the second epoch
        monkeypatch.chdir(folder)
        lines: list[str] = []
        assert supervise("train.py", [way], settings, tell=lines.append) == 0
        results[way], said[way] = json.loads((folder / "result.json").read_text()), lines
    assert said["device"] == []
    assert signal.SIGKILL.name in said["host"][0]
    assert [line for line in said["host"] if line.startswith("restart")] == said["host"][-1:]
    ours, stock = results["host"], results["device"]
    assert ours["host"]
    assert not stock["host"]
    assert ours["events"] == []
    for a, b in zip(ours["weights"], stock["weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    # Every batch, so that another order of the samples would show.
    np.testing.assert_allclose(ours["losses"], stock["losses"], rtol=1e-5)
    for name, values in stock["history"].items():
        np.testing.assert_allclose(ours["history"][name], values, rtol=1e-5, err_msg=name)
