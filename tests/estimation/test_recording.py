"""What is recorded of a step: its setup, its variables, its events."""

from typing import Any

import keras
import pytest
import tensorflow as tf

from memfit.estimation.recording.keras_step import KerasStep
from memfit.estimation.recording.record import record
from memfit.estimation.recording.recording import Recording
from memfit.estimation.recording.sending import packed
from memfit.estimation.recording.specs import spec_of
from prepared import in_arena

MIB = 2**20


def _model() -> keras.Model:
    layers = keras.layers
    model = keras.Sequential([keras.Input((256,)), layers.Dense(512, activation="relu"), layers.Dense(256)])
    model.compile("adam", "mse")
    return model


class Buffered(KerasStep):
    """The model's own step, with a buffer that is made when it is built, and one when it is first traced."""

    def __init__(self, model: Any) -> None:
        model.optimizer.build(model.trainable_variables)
        super().__init__(model, "train")
        tf.zeros((5 * MIB,), tf.uint8)  # freed at once
        self.buffers = [tf.Variable(tf.zeros((3 * MIB,), tf.uint8), name="built")]

    def trace(self, spec: Any) -> Any:
        if len(self.buffers) == 1:
            self.buffers.append(tf.Variable(tf.zeros((MIB,), tf.uint8), name="traced"))
        return super().trace(spec)

    def variables(self) -> list[Any]:
        return self.buffers


class InTwoParts(KerasStep):
    """A step that says that it cuts its batches in two."""

    parts = 2

    def __init__(self, model: Any) -> None:
        super().__init__(model, "train")


def _record(build: Any, phase: str = "train", largest: int = 8) -> Recording:
    model = _model()
    return in_arena(record, packed(model, spec_of(model)), build, largest, 32, phase, memory="2GiB")


@pytest.fixture(scope="module")
def buffered() -> Recording:
    return _record(Buffered)


@pytest.fixture(scope="module")
def stock() -> Recording:
    return _record(None)


def test_batches_that_are_cut_in_parts_are_recorded_in_equal_parts_of_several_samples():
    sizes = _record(InTwoParts, largest=12).batches
    assert {6, 12} <= set(sizes)
    assert all(size % 2 == 0 and size > 2 for size in sizes)


def test_what_building_and_tracing_a_step_allocates_is_its_setup_in_order(buffered):
    large = [(event.requested // MIB, event.freed) for event in buffered.setup if event.requested >= MIB]
    assert large == [(5, False), (5, True), (3, False), (1, False)]


def test_a_variable_that_the_setup_made_says_which_event_allocated_it(buffered):
    made = {variable.name: variable for variable in buffered.variables if variable.event is not None}
    assert {"built:0", "traced:0"} < set(made)
    assert [v.kind for v in made.values()].count("optimizer state") >= 8  # two moments of four weights
    for variable in made.values():
        event = buffered.setup[variable.event]
        assert (event.requested, event.freed) == (variable.bytes, False)


def test_the_weights_were_there_before_the_setup(buffered):
    weights = [variable for variable in buffered.variables if variable.kind == "weights"]
    assert len(weights) == 4
    assert all(variable.event is None for variable in weights)


def test_the_state_that_keras_makes_in_the_first_step_is_no_part_of_the_setup(stock):
    assert not [event for event in stock.setup if event.requested >= 2**16]
    assert not [variable for variable in stock.variables if variable.kind == "optimizer state"]
    moments = [event for event in stock.starts[0] if not event.freed and event.requested == 4 * 256 * 512]
    assert moments


def test_steps_in_a_row_are_of_the_batch_asked_about_and_one_of_more_samples_is_looked_at(stock):
    assert {step.batch for step in stock.steps} == {8}
    assert stock.batches == (2, 8, 16)


def _volumes() -> keras.Model:
    layers = keras.layers
    model = keras.Sequential([keras.Input((6, 24, 24, 2)), layers.Conv3D(16, 3), layers.Conv3D(16, 3)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def test_where_kernels_choose_their_workspace_by_the_batch_no_smaller_one_stands_for_it(monkeypatch):
    monkeypatch.setattr("memfit.estimation.recording.record._SECONDS", (0.0, 0.0))
    model = _volumes()
    recording = record(packed(model, spec_of(model)), None, 20, 20, "train")
    assert {step.batch for step in recording.steps} == {20}


def test_each_batch_size_that_has_a_trace_of_its_own_says_its_constants(stock):
    assert [step.batch for step in stock.folded] == [2, 16, 8]  # those of the steps in a row come last
    for step in stock.folded:
        assert all(not event.freed for event in step.events)
        # An op's output lives in every step, and is no constant, unless it was computed ahead.
        assert all(event.region != "output" or "__cf__" in event.op for event in step.events)


@pytest.mark.parametrize("phase", ["validate", "predict"])
def test_other_phases_have_no_optimizer(phase):
    recording = _record(None, phase)
    assert {variable.kind for variable in recording.variables} == {"weights"}
    assert len(recording.steps) >= 5


def test_the_recorded_step_is_op_by_op_the_one_that_keras_traces():
    like = [keras.layers.Dense(64, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((64,)), *like])
    model.compile("adam", "mse")
    recording = in_arena(record, packed(model, spec_of(model)), None, 8, 32, "train", memory="2GiB")
    model.optimizer.build(model.trainable_variables)
    traced = tf.function(model.train_step).get_concrete_function(spec_of(model).tensor_specs(8))

    # TensorFlow starts ops that are ready in the order in which they were made: another order is another peak.
    assert list(recording.inputs) == [op.name for op in traced.graph.get_operations()]
