"""A script runs up to its first fit() as Python would run it, and what it was about to train is taken over."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import memfit
from memfit.survival.first_fit import first_fit
from memfit.training.running import Runner, current_runner

MODEL = """
import keras, numpy as np
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((6, 4), "float32"), np.ones((6, 1), "float32")
"""


def script(folder: Path, text: str) -> Path:
    (folder / "train.py").write_text(text)
    return folder / "train.py"


@pytest.mark.parametrize(
    "fit",
    [
        "model.fit(x, y, 3, epochs=5)",
        "import memfit; memfit.fit(model, x, y, 3, epochs=5, memory='1GiB')",
        "from memfit import fit; fit(model, x, y, batch_size=3, epochs=5)",
    ],
)
def test_the_model_and_the_arguments_are_those_of_the_first_fit(tmp_path: Path, fit: str) -> None:
    path = script(tmp_path, f"{MODEL}\n{fit}\nraise AssertionError('trained')")
    argv, main = sys.argv, sys.modules["__main__"]
    methods = keras.Model.fit
    call = first_fit(path)
    assert isinstance(call.model, keras.Model)
    assert call.batch_size == 3
    assert call.arguments["epochs"] == 5
    np.testing.assert_array_equal(call.data[0], np.ones((6, 4)))
    # The process that asked is as it was, but that it finds the script's modules; and trains.
    assert (sys.argv, sys.modules["__main__"]) == (argv, main)
    assert sys.path[0] == str(tmp_path)
    assert keras.Model.fit is methods
    assert type(current_runner()) is Runner
    assert len(memfit.fit(call.model, *call.data, verbose=0).epoch) == 1


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ("", None),
        ("validation_split=0.5", 3),
        ("validation_data=(x, y), validation_batch_size=2", 2),
    ],
)
def test_the_validation_batch_is_known(tmp_path: Path, more: str, size: int | None) -> None:
    call = first_fit(script(tmp_path, f"{MODEL}\nmodel.fit(x, y, 3, {more})"))
    assert call.validation_batch_size(call.batch_size) == size


def test_no_except_of_the_script_stops_it(tmp_path: Path) -> None:
    text = f"{MODEL}\ntry:\n    model.fit(x, y)\nexcept Exception:\n    pass\nmodel = None"
    assert isinstance(first_fit(script(tmp_path, text)).model, keras.Model)


def test_the_script_sees_itself_as_python_shows_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside.py").write_text("value = 5")
    text = "import beside, json, sys\nprint(json.dumps([__name__, __file__, sys.argv, beside.value]))" + MODEL
    path = script(tmp_path, f"{text}\nif __name__ == '__main__':\n    model.fit(x, y)")
    first_fit(path, ["--epochs", "3"])
    shown = json.loads(capfd.readouterr().out)
    assert shown == ["__main__", str(path), [str(path), "--epochs", "3"], 5]
    first_fit(path, quiet=True)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "never called"),
        ("raise KeyError('no data')", "failed before it called fit.*KeyError: 'no data'"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("print(", "SyntaxError"),
    ],
)
def test_a_script_that_does_not_train_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(memfit.InvalidInput, match=message):
        first_fit(script(tmp_path, text))
    with pytest.raises(memfit.InvalidInput, match="no such script"):
        first_fit(tmp_path / "nothing.py")


TAPE = """
import tensorflow as tf
optimizer = keras.optimizers.SGD(1.0)
before = [w.copy() for w in model.get_weights()]

DECORATED
def step():
    with tf.GradientTape() as tape:
        loss = keras.ops.mean((model(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

try:
    step()
except Exception:
    pass
print("trained")
"""


@pytest.mark.parametrize(
    ("loop", "line"),
    [
        (TAPE.replace("DECORATED", ""), 16),
        (TAPE.replace("DECORATED", "@tf.function"), 19),
        ("for _ in range(2):\n    model.train_on_batch(x, y)\nprint('trained')", 8),
    ],
)
def test_a_loop_without_fit_is_stopped_before_its_first_update(
    tmp_path: Path, loop: str, line: int, capfd: pytest.CaptureFixture[str]
) -> None:
    apply = keras.optimizers.Optimizer.apply
    with pytest.raises(
        memfit.InvalidInput, match=rf"custom loop.*train\.py, line {line}\).*memfit\.gradients"
    ):
        first_fit(script(tmp_path, f"{MODEL}\n{loop}"))
    assert "trained" not in capfd.readouterr().out
    assert keras.optimizers.Optimizer.apply is apply


def test_updates_inside_of_fit_are_no_loop(tmp_path: Path) -> None:
    text = MODEL + "\nmodel.evaluate(x, y, verbose=0)\nmodel.fit(x, y, epochs=2, verbose=0)"
    assert first_fit(script(tmp_path, text)).arguments["epochs"] == 2


def asked(folder: Path, text: str, of_call: str) -> subprocess.CompletedProcess[str]:
    """Prints something of a script's first fit, in a process that has imported nothing yet."""
    asks = f"import sys; from memfit.survival.first_fit import first_fit; print(first_fit(sys.argv[1]).{of_call})"
    command = [sys.executable, "-c", asks, str(script(folder, text))]
    return subprocess.run(command, capture_output=True, text=True)


def test_nothing_is_imported_that_the_script_may_want_to_configure(tmp_path: Path) -> None:
    text = "import sys\nassert not {'keras', 'tensorflow', 'numpy'} & set(sys.modules)" + MODEL
    done = asked(tmp_path, text + "\nmodel.fit(x, y)", "batch_size")
    assert done.stdout == "32\n", done.stderr


def test_a_script_on_another_backend_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    text = "import os; os.environ['KERAS_BACKEND'] = 'jax'" + MODEL + "\nmodel.fit(x, y)"
    done = asked(tmp_path, text, "batch_size")
    assert "memfit works with Keras on TensorFlow. Received: 'a script on jax'" in done.stderr


def test_memfit_s_own_fit_is_stopped_at_whenever_it_was_imported(tmp_path: Path) -> None:
    text = "from memfit import fit" + MODEL + "\nfit(model, x, y, epochs=7)\nprint('trained')"
    done = asked(tmp_path, text, "arguments['epochs']")
    assert done.stdout == "7\n", done.stderr
