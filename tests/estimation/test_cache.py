"""What was estimated before is remembered, and is never another model's."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import pytest

import memfit
from memfit.cli.main import main
from memfit.estimation import cache
from memfit.estimation.fingerprint import fingerprint

UNITS = 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path))
    return tmp_path


def _count(calls: list[int]) -> int:
    calls.append(1)
    return len(calls)


def test_what_was_computed_for_the_same_parts_is_not_computed_again(folder):
    calls: list[int] = []
    first, made = cache.remembered(("a", 1), lambda: _count(calls), about="a test")
    assert (first, made) == (1, None)
    again, made = cache.remembered(("a", 1), lambda: _count(calls), about="a test")
    assert again == 1
    assert made is not None
    assert cache.remembered(("a", 2), lambda: _count(calls), about="a test")[0] == 2
    assert [entry.about for entry in cache.entries()] == ["a test", "a test"]


def test_nothing_is_kept_of_what_cannot_be_named_or_where_it_is_switched_off(folder, monkeypatch):
    calls: list[int] = []
    for _ in range(2):
        cache.remembered(None, lambda: _count(calls), about="")
    monkeypatch.setenv("MEMFIT_CACHE", "0")
    for _ in range(2):
        cache.remembered(("a",), lambda: _count(calls), about="")
    assert len(calls) == 4
    assert cache.entries(folder) == []


def test_a_damaged_file_is_computed_again(folder):
    cache.remembered(("a",), lambda: 1, about="")
    (entry,) = cache.entries()
    file = folder / "estimates" / entry.key
    file.write_bytes(file.read_bytes()[:-3])
    assert cache.remembered(("a",), lambda: 2, about="") == (2, None)
    assert cache.remembered(("a",), lambda: 3, about="")[0] == 2


def test_the_longest_unused_makes_room(folder, monkeypatch):
    monkeypatch.setattr(cache, "_MOST_BYTES", 3500)
    for number in range(5):
        cache.remembered((number,), lambda: os.urandom(1000), about=str(number))
        for entry in cache.entries():
            os.utime(folder / "estimates" / entry.key, (entry.made, entry.made))
    assert [entry.about for entry in cache.entries()] == ["4", "3", "2"]


def test_a_value_that_cannot_be_kept_is_returned(folder):
    value, _ = cache.remembered(("a",), lambda: (number for number in range(3)), about="")
    assert list(value) == [0, 1, 2]


class Scaled(keras.layers.Layer):
    def __init__(self, scale: float) -> None:
        super().__init__(name="scaled")
        self.scale = scale

    def call(self, x: Any) -> Any:
        return x * self.scale * UNITS


class ScaledOtherwise(keras.layers.Layer):
    def __init__(self, scale: float) -> None:
        super().__init__(name="scaled")
        self.scale = scale

    def call(self, x: Any) -> Any:
        return (x + x) * self.scale * UNITS


ScaledOtherwise.__name__ = ScaledOtherwise.__qualname__ = "Scaled"


def _loss_of(weight: float) -> Any:
    def loss(y: Any, predicted: Any) -> Any:
        return weight * keras.ops.mean(y - predicted)

    return loss


def _model(
    units: int = 8, momentum: float = 0.0, loss: Any = "mse", trainable: bool = True, layer: Any = None
) -> Any:
    keras.backend.clear_session()
    layers = keras.layers
    dense = layers.Dense(units, name="dense", trainable=trainable)
    model = keras.Sequential([keras.Input((4,)), dense, *([] if layer is None else [layer])], name="model")
    model.compile(keras.optimizers.SGD(momentum=momentum), loss)
    return model


def test_equal_models_have_equal_names_and_others_do_not():
    same = fingerprint(_model())
    assert same is not None
    assert fingerprint(_model()) == same
    others = [
        _model(units=9),
        _model(momentum=0.9),
        _model(loss="mae"),
        _model(trainable=False),
        _model(layer=Scaled(1.0)),
        _model(layer=Scaled(2.0)),
        _model(layer=ScaledOtherwise(1.0)),
        _model(loss=_loss_of(1.0)),
        _model(loss=_loss_of(2.0)),
    ]
    names = [fingerprint(model) for model in others]
    assert None not in names
    assert len({same, *names}) == 1 + len(names)


def test_a_global_that_a_layer_names_is_part_of_its_name(monkeypatch):
    before = fingerprint(_model(layer=Scaled(1.0)))
    monkeypatch.setattr(sys.modules[__name__], "UNITS", 5)
    assert fingerprint(_model(layer=Scaled(1.0))) != before


def test_what_cannot_be_told_has_no_name():
    class Opaque(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

        def call(self, x: Any) -> Any:
            return x

    assert fingerprint(_model(layer=Opaque())) is None


def test_another_process_gives_a_model_the_same_name():
    script = """
import keras
from memfit.estimation.fingerprint import fingerprint
model = keras.applications.MobileNet(weights=None, input_shape=(32, 32, 3), alpha=0.25, classes=2)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
print(fingerprint(model))
"""
    names = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert names[0] == names[1] != "None"


def test_a_second_estimate_of_the_same_model_comes_from_disk_and_says_so(folder, capsys):
    first = memfit.estimate(_model(), 8)
    assert "before" not in first.source
    second = memfit.estimate(_model(), 8)
    assert "recorded before (" in second.source
    assert (second.peak, second.needed, second.breakdown) == (first.peak, first.needed, first.breakdown)
    assert main(["cache", "ls"]) == 0
    (entry,) = cache.entries()
    assert f"{entry.key}  {entry.size}  train, batch 8: model" in capsys.readouterr().out
    assert main(["cache", "rm", entry.key[:6]]) == 0
    assert cache.entries() == []
