import json
import subprocess
from pathlib import Path

from prepared import run_memfit

SCRIPT = """
import sys
import keras, tensorflow as tf
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((tf.zeros((8, 4)), tf.zeros((8, 1))))
data = {pipeline}
try:
    model.fit(data.batch(2), validation_data=data.batch(4), epochs=int(sys.argv[1]))
except Exception:
    pass
print("trained")
"""


def _lint(tmp_path: Path, pipeline: str, *flags: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(pipeline=pipeline))
    return run_memfit("lint", *flags, str(script), "3")


def test_the_datasets_of_fit_are_linted_without_training(tmp_path: Path) -> None:
    done = _lint(tmp_path, "data.repeat(2).shuffle(8)")
    assert done.returncode == 1
    assert "trained" not in done.stdout
    assert done.stdout.count("repeat-before-shuffle") == 2
    assert "validation data, stage 3 shuffle" in done.stdout


def test_json_is_for_programs_and_a_good_script_ends_with_code_0(tmp_path: Path) -> None:
    done = _lint(tmp_path, "data.shuffle(8).repeat(2)", "--json", "--host", "16GiB")
    assert done.returncode == 0
    assert json.loads(done.stdout) == []


def test_a_script_without_fit_or_without_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("x = 1\n")
    for script, message in (("idle.py", "never called model.fit"), ("none.py", "no such script")):
        done = run_memfit("lint", str(tmp_path / script))
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
