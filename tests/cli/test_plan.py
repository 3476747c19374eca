"""memfit plan, on scripts: what it answers is what `memfit run` does."""

import json
import os
import subprocess
import sys
from pathlib import Path

from memfit.estimation.cache import entries
from prepared import forking_environment

SCRIPT = """
import keras, numpy as np
layers = keras.layers
parts = [layers.Dense(512), layers.Activation("relu"), layers.Dense(1)]
model = keras.Sequential([keras.Input((64,)), *parts], name="wide")
model.compile("sgd", "mse", jit_compile=False)
x, y = np.ones((4096, 64), "float32"), np.ones((4096, 1), "float32")
keras.utils.set_random_seed(1)
model.fit(x, y, batch_size=1024, validation_split=0.5, validation_batch_size=2048, verbose=0)
"""


def memfit(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command that keeps what it finds out in a folder."""
    switches = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")
    environment = {name: value for name, value in os.environ.items() if name not in switches}
    kept = {
        "MEMFIT_CACHE": str(folder / "cache"),
        "MEMFIT_RUNS": str(folder / "runs"),
        **forking_environment(),
    }
    return subprocess.run(
        [sys.executable, "-m", "memfit", *arguments],
        cwd=folder,
        env={**environment, **kept},
        capture_output=True,
        text=True,
        check=True,
    )


MODULE = """
import keras
class Scaled(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)
    def call(self, x):
        return 2 * self.dense(x)
"""
IMPORTING = """
import numpy as np
from scaled import Scaled
model = Scaled()
model.compile("sgd", "mse", jit_compile=False)
model.fit(np.ones((64, 8), "float32"), np.ones((64, 4), "float32"), batch_size=16)
"""


def test_a_script_in_another_folder_finds_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "scaled.py").write_text(MODULE)
    (tmp_path / "sources" / "train.py").write_text(IMPORTING)
    assert json.loads(memfit(tmp_path, "estimate", "sources/train.py", "--json").stdout)["batch_size"] == 16


def test_run_asks_what_plan_has_answered_validation_included(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    planned = json.loads(memfit(tmp_path, "plan", "train.py", "--memory", "10MiB", "--json").stdout)
    kept = {entry.key for entry in entries(tmp_path / "cache")}
    about = {entry.about.partition(",")[0] for entry in entries(tmp_path / "cache")}
    assert about == {"plan", "train", "validate"}
    memfit(tmp_path, "run", "--memory", "10MiB", "train.py")
    assert {entry.key for entry in entries(tmp_path / "cache")} == kept
    [file] = (tmp_path / "runs").glob("*.json")
    followed = json.loads(file.read_text())["plan"]
    assert (followed["stock"], followed["recipe"]) == (planned["stock"], planned["recipe"])
