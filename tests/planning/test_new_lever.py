"""A new lever is one file: CONTRIBUTING shows one, which is registered here, planned, printed and applied."""

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import memfit
from memfit.planning.levers import LEVERS

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def _read_lever() -> tuple[str, dict[str, Any]]:
    """The lever of CONTRIBUTING.md: its text, and what it defines."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", CONTRIBUTING.read_text(), re.DOTALL)
    (text,) = [block for block in blocks if "(Lever)" in block]
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, "CONTRIBUTING.md", "exec"), names)
    return text, names


def _network() -> keras.Model:
    layers = keras.layers
    inputs = x = keras.Input((512, 8))
    for _ in range(3):
        x = layers.Dense(64)(x)
        for _ in range(6):
            x = layers.Dropout(0.5)(x)
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))
    model.compile("sgd", "mse", jit_compile=False)
    return model


class Rates(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[float] = set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen |= {layer.rate for layer in self.model.layers if isinstance(layer, keras.layers.Dropout)}


def test_a_new_lever_is_one_short_file_and_is_planned_printed_and_applied() -> None:
    text, names = _read_lever()
    assert len(text.splitlines()) < 60
    own = list(LEVERS)
    LEVERS[:] = [names["WithoutDropout"]()]
    try:
        model = _network()
        # Stock's peak is 15 to 21 MiB, as threads draw masks ahead or not; without dropout it is 9.
        memory = int(0.7 * memfit.estimate(model, 16).peak)
        with pytest.raises(memfit.DoesNotFit, match='With allow="model" this batch would fit'):
            memfit.plan(model, 16, memory=memory, allow="near")
        plan = memfit.plan(model, 16, memory=memory, allow="model")
        assert str(plan.fidelity) == "model"
        assert "no dropout" in repr(plan)
        assert memfit.Plan.from_json(plan.to_json()) == plan
        rates = Rates()
        x, y = np.ones((16, 512, 8), "float32"), np.ones((16, 1), "float32")
        memfit.fit(model, x, y, plan=plan, callbacks=[rates], verbose=0)
        assert rates.seen == {0.0}
        assert {layer.rate for layer in model.layers if isinstance(layer, keras.layers.Dropout)} == {0.5}
    finally:
        LEVERS[:] = own
