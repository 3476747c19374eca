"""Several questions to one process."""

import os
from typing import Any

import keras
import pytest
import tensorflow as tf

import memfit
from memfit.budgets.kept_server import end_kept_servers
from memfit.errors import ProcessDied
from memfit.estimation.recorder import Recorder
from memfit.estimation.recording.keras_step import KerasStep
from memfit.estimation.recording_process import recording_process


def _model() -> keras.Model:
    layers = keras.layers
    model = keras.Sequential([keras.Input((256,)), layers.Dense(512, activation="relu"), layers.Dense(256)])
    model.compile("adam", "mse", run_eagerly=True)  # one op after the other, so that recordings are equal
    return model


def _disturb(model: Any) -> KerasStep:
    """Builds the model's own step, and leaves what it can for whatever is recorded in this process afterwards."""
    keras.config.set_epsilon(0.5)
    keras.config.set_dtype_policy("mixed_bfloat16")
    _disturb.kept = [tf.zeros((1000 + 4096 * size,)) for size in range(64)]  # type: ignore[attr-defined]
    return KerasStep(model, "train")


def _first_step(estimate: Any) -> list[tuple[str, str]]:
    """What there is before the first step, and what is allocated and freed in it, in order.

    But for the batch, which TensorFlow takes over without a copy now and then.
    """
    script = estimate.made_from.script
    named = [(a.op, a.kind) for a in script.allocations]
    events = [
        (n, named[n]) if n >= 0 else (n, ("freed", named[-1 - n][1])) for n in script.order[: script.ends[1]]
    ]
    return [*named[: script.variables], *(name for _, name in events if name[1] != "inputs")]


def test_a_second_recording_is_equal_to_one_in_a_fresh_process():
    model = _model()
    with Recorder(model) as recorder:
        recorder.estimate(8, _disturb)
        second = recorder.estimate(8)
    end_kept_servers()
    fresh = memfit.estimate(model, 8)  # a larger batch may be recorded at more sizes when there is more time
    assert _first_step(second) == _first_step(fresh)
    assert second.peak == pytest.approx(fresh.peak, rel=0.01)  # of as many steps as there was time for


def test_a_crash_ends_one_recording_and_not_the_next():
    with Recorder(_model()) as recorder:
        with pytest.raises(ProcessDied, match="SIGABRT"):
            recorder.estimate(64, lambda model: os.abort())
        assert recorder.estimate(64).peak > 0


def test_a_model_of_a_mirrored_strategy_is_estimated_as_one_replica():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = _model()
    ordinary = memfit.estimate(_model(), 32)
    assert memfit.estimate(mirrored, 32).peak == pytest.approx(ordinary.peak, rel=0.1)


def test_other_phases_can_be_asked_for_when_the_recorder_has_ended():
    with Recorder(_model()) as recorder:
        estimate = recorder.estimate(64)
    assert (estimate.predict.phase, estimate.validate.phase) == ("predict", "validate")
    assert max(estimate.predict.peak, estimate.validate.peak) < estimate.peak


def _number_of_process() -> int:
    return os.getppid()


def test_a_process_is_used_again_while_its_environment_is_the_same(monkeypatch):
    def number() -> int:
        with recording_process() as process:
            return process.run(_number_of_process, ())

    first = number()
    assert number() == first
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    other = number()
    assert other != first
    end_kept_servers()
    assert number() not in (first, other)


def test_a_process_that_somebody_uses_is_not_ended():
    with recording_process() as process:
        end_kept_servers()
        assert process.run(os.getpid, ()) > 0
