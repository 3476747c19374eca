"""memfit estimate, on scripts and saved models."""

import json
from pathlib import Path

import pytest

from memfit.cli.main import main

SCRIPT = """
import sys
import numpy as np
import keras
print("building", sys.argv[1:])
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, activation="relu"), keras.layers.Dense(4)])
model.compile("sgd", "mse")
try:
    model.fit(np.ones((320, 64), "float32"), np.ones((320, 4), "float32"), batch_size=48)
except Exception:
    pass
raise SystemExit("went past fit")
"""


def _file(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def test_a_script_is_run_up_to_its_fit_and_estimated(tmp_path, capsys):
    page = tmp_path / "step.html"
    argv = ["estimate", _file(tmp_path, SCRIPT), "--memory", "1GiB", "--json", "--html", str(page)]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["batch_size"] == 48
    assert found["fits"]
    assert found["max_batch"] > 1000
    assert "Predicted memory of one train step at batch 48" in page.read_text()
    assert sum(share["bytes"] for share in found["shares"]) <= found["peak"]
    assert main(argv) == 2  # it would overwrite the page
    assert "--force" in capsys.readouterr().err


def test_the_scripts_own_arguments_come_behind_two_dashes_wherever_options_are(tmp_path, capsys):
    file = _file(tmp_path, "import sys; raise SystemExit(str(sys.argv[1:]))")
    for options in ([file, "--json", "--", "--epochs", "3"], ["--json", file, "--", "--epochs", "3"]):
        assert main(["estimate", *options]) == 2
        assert "['--epochs', '3']" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["estimate", file, "--jsn"])
    assert "unrecognized arguments: --jsn" in capsys.readouterr().err


def test_a_saved_model_is_estimated_for_a_named_gpu(tmp_path, capsys):
    import keras

    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)]).save(path)
    assert main(["estimate", str(path), "--batch", "64"]) == 2
    assert "--optimizer adam" in capsys.readouterr().err
    assert main(["estimate", str(path), "--batch", "64", "--optimizer", "adam", "--device", "RTX 3060"]) == 0
    out = capsys.readouterr().out
    assert "RTX 3060 (11.22 GiB usable): batch 64 fits" in out
    assert "guess" in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "never called model.fit"),
        ("1 / 0", "failed before it called fit(): ZeroDivisionError"),
        ("raise SystemExit(3)", "exit code 3"),
    ],
)
def test_a_script_without_a_fit_is_refused_in_one_sentence(tmp_path, capsys, text, words):
    assert main(["estimate", _file(tmp_path, text)]) == 2
    assert words in capsys.readouterr().err


def test_bad_input_is_refused_in_one_sentence(tmp_path, capsys):
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    for argv, words in (
        (["missing.py"], "no such script"),
        (["missing.keras"], "no such file"),
        ([str(text)], "not a Keras model"),
        (["train.py", "--batch", "0"], "at least one sample"),
        (["train.py", "--device", "RTX 3065"], "Did you mean RTX 3060"),
    ):
        assert main(["estimate", *argv]) == 2
        assert words in capsys.readouterr().err


OWN_STEP = """
import keras, numpy as np
class Own(keras.Sequential):
    def train_step(self, data):
        raise TypeError("\\x1b[1mnot like\\x1b[0m\\n this")
model = Own([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 4)), np.ones((8, 1)))
"""


def test_a_step_that_fails_while_it_is_recorded_is_told_in_one_sentence(tmp_path, capsys):
    assert main(["estimate", _file(tmp_path, OWN_STEP)]) == 2
    told = capsys.readouterr().err
    assert "The training step failed on synthetic data: TypeError: not like this." in told
    assert "Traceback" not in told
