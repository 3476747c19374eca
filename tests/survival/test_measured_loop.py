"""A training loop of a script's own is measured over its first updates, and what its peak is made of is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from prepared import run_memfit

SCRIPT = """
import sys
import keras
import numpy as np
import tensorflow as tf

layers = keras.layers
wide = layers.Dense(64, "tanh", name="wide")
model = keras.Sequential([keras.Input((256, 8)), wide, layers.Dense(1)])
optimizer = keras.optimizers.SGD()
updates = 0

def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True)))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

step = tf.function(step) if "traced" in sys.argv else step
for _ in range(int(sys.argv[1])):
    step(tf.ones((64, 256, 8)))
    print("an update")
open(sys.argv[2], "w").write("it ran to its end")
"""


def estimate(folder: Path, *arguments: str, memory: str = "1GiB") -> tuple[int, str, str]:
    script = folder / "loop.py"
    script.write_text(SCRIPT)
    ended = run_memfit("estimate", str(script), "--json", "--memory", memory, "--", *arguments)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("how", ["traced", "eager"])
def test_a_loop_is_stopped_after_some_updates_and_its_peak_is_told(tmp_path: Path, how: str) -> None:
    end = tmp_path / "end"
    code, told, _ = estimate(tmp_path, "1000", str(end), how)
    figures: dict[str, Any] = json.loads(told)
    assert code == 0
    assert not end.exists()
    assert figures["updates"] == 8
    assert sum(figures["parts"].values()) == figures["peak"]
    kept = 64 * 256 * 64 * 4  # what tanh gave
    largest = figures["top"][0]
    assert largest["bytes"] >= kept
    if how == "traced":
        assert largest["asked_by"] == "wide"
        assert figures["parts"]["activations"] >= kept
    assert "memfit.gradients" in figures["advice"]


def test_a_loop_that_does_not_fit_gives_exit_code_1_and_one_that_ends_at_once_is_refused(
    tmp_path: Path,
) -> None:
    end = tmp_path / "end"
    assert estimate(tmp_path, "1000", str(end), "traced", memory="2MiB")[0] == 1
    code, _, error = estimate(tmp_path, "2", str(end), "eager")
    assert code not in (0, 1)
    assert "ended after 2" in error
