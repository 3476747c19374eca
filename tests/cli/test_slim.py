"""memfit slim, on scripts and saved models."""

import json
from pathlib import Path

import pytest

from memfit.cli.main import main

SCRIPT = """
import numpy as np
import keras
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(4)])
model.compile("sgd", "mse", jit_compile=False)
model.fit(np.ones((64, 32), "float32"), np.ones((64, 4), "float32"), batch_size=16)
raise SystemExit("went past fit")
"""


@pytest.fixture
def saved(tmp_path: Path) -> str:
    import keras

    layers = keras.layers
    model = keras.Sequential([keras.Input((32,)), layers.Dense(64, activation="relu"), layers.Dense(4)])
    model.compile("sgd", "mse", jit_compile=False)
    file = tmp_path / "model.keras"
    model.save(file)
    return str(file)


def test_a_script_is_run_up_to_its_fit_and_its_variants_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("memfit.slimming.comparing._TRIED", 0)
    monkeypatch.setattr("memfit.slimming.comparing.SECONDS", 0.0)
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    assert main(["slim", str(file), "--memory", "1GiB"]) == 0
    shown = capsys.readouterr().out
    assert "Variants at batch 16" in shown
    assert "samples before any training" in shown
    assert "separable: not made: no Conv2D" in shown
    assert "batch 16 in 1.00 GiB: fits as it is" in shown
    assert "to train one: model = memfit.slim(model, 'narrow') before fit() in" in shown


def test_a_variant_is_written_and_the_next_command_named(saved, tmp_path, capsys):
    import keras

    small = str(tmp_path / "small.keras")
    argv = ["slim", saved, "--variant", "narrow", "--amount", "0.5", "--output", small]
    assert main(argv) == 0
    assert f"memfit estimate {small}" in capsys.readouterr().out
    assert keras.saving.load_model(small).layers[0].units == 32
    assert main(argv) == 2  # it would overwrite the file
    assert "--force" in capsys.readouterr().err
    assert main([*argv, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] < 64 * 37


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--variant", "tiny"], "There is no such variant"),
        (["--variant", "narrow", "--amount", "2"], "The amount of 'narrow' is the fraction"),
        (["--variant", "narrow"], "--output small.keras"),
        (["--amount", "0.5"], "need --variant"),
        (["--memory", "much"], "not a size of memory"),
        (["--device", "RTX 1"], "RTX 1"),
    ],
)
def test_bad_options_are_refused_before_the_model_is_built(options, told, tmp_path, capsys):
    file = tmp_path / "model.keras"
    file.write_text("no model")
    assert main(["slim", str(file), *options]) == 2
    assert told in capsys.readouterr().err
