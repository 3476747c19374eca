"""What is asked about the GPU that is here: its driver is made up, and XLA compiles for the CPU in its place."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from memfit.budgets.gpu_table import gpu
from memfit.estimation.gpu_compiler import asking
from memfit.estimation.gpu_compiler.compiled import NotCompiled
from memfit.estimation.gpu_compiler.on_card import compile_on_card
from memfit.estimation.recording.sending import packed
from memfit.estimation.recording.specs import spec_of
from memfit.planning import job as jobs
from memfit.planning import planning
from prepared import in_arena

CARD = gpu("RTX 3060")
MIB = 2**20


def network(*, jit_compile: bool = True) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(256, "relu"),
            layers.Dense(10),
        ]
    )
    model.compile("adam", "mse", jit_compile=jit_compile)
    return model


def measure(batch: int) -> int:
    """Measures the peak of a step after the first, in which the optimizer's slots leave the buffer they share."""
    model = network()
    for _ in range(3):
        tf.config.experimental.reset_memory_stats("CPU:0")
        model.train_on_batch(np.ones((batch, 32, 32, 3), "float32"), np.ones((batch, 10), "float32"))
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])


@pytest.fixture
def card_is_here(monkeypatch):
    for module in (asking, jobs):
        monkeypatch.setattr(module, "present_gpu", lambda: CARD)
    monkeypatch.setattr("memfit.budgets.gpu_table.present_gpu", lambda: CARD)


@pytest.fixture
def no_compiler(monkeypatch):
    def refuse():
        raise NotCompiled("the GPU compiler is not installed")

    monkeypatch.setattr(asking, "compiler_version", refuse)


def test_tensorflow_compiles_a_step_for_a_device_of_this_machine():
    model = network()
    payload = packed(model, spec_of(model, None))
    compiled, parts = compile_on_card(payload, None, 64, "train", "/CPU:0")
    variables = parts.weights + parts.optimizer
    assert variables <= compiled.arguments < 1.1 * variables
    assert compiled.kernels
    measured = in_arena(measure, 64, memory="2GiB")
    assert compiled.peak == pytest.approx(measured, rel=0.1)  # the allocator holds 5 MiB beside it


def test_a_step_that_does_not_compile_there_says_why():
    model = network()
    with pytest.raises(NotCompiled, match="TensorFlow's XLA"):
        compile_on_card(packed(model, spec_of(model, None)), None, 64, "train", "/GPU:7")


def test_the_card_that_is_here_is_planned_for_unless_told(card_is_here, no_compiler, monkeypatch):
    monkeypatch.setattr(
        asking,
        "compile_on_card",
        lambda payload, build, batch, phase: compile_on_card(payload, build, batch, phase, "/CPU:0"),
    )
    estimate = memfit.estimate(network(), 64)
    assert estimate.device == CARD
    assert estimate.source == f"compiled for NVIDIA RTX 3060 (XLA, TensorFlow {tf.__version__} on the card)"


def test_a_step_that_keras_does_not_compile_is_recorded(card_is_here, no_compiler):
    estimate = memfit.estimate(network(jit_compile=False), 8)
    assert estimate.device == CARD
    assert "recorded on this CPU" in estimate.source
    assert "not compiled for RTX 3060: Keras does not compile it (jit_compile=False)" in estimate.source


def test_a_job_that_clearly_fits_the_card_is_not_compiled(card_is_here, monkeypatch):
    monkeypatch.setattr(planning, "Recorder", None)
    plan = memfit.plan(network(), 8, memory="8GiB")
    assert plan.recipe.is_stock
