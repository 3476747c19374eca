"""Canaries of what memfit uses of Keras's training beside its public face."""

import copy
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from compat.canaries import canary
from memfit.compat import keras_training


@pytest.fixture
def model() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


@pytest.fixture
def two_outputs() -> keras.Model:
    x = keras.Input((2,))
    model = keras.Model(x, [keras.layers.Dense(1, name=name)(x) for name in ("a", "b")])
    model.compile("sgd", ["mse", "mae"])
    keras_training.build(model, tf.ones([1, 2]), [tf.ones([1, 1])] * 2, None)
    return model


@canary("keras_training.CALLBACK_MODEL", "Callback._model", of="keras")
def test_a_callback_keeps_its_model_where_memfit_does_not_look_for_state():
    callback, model = keras.callbacks.Callback(), keras.Model()
    callback.set_model(model)
    assert {name for name, value in vars(callback).items() if value is model} <= {
        *keras_training.CALLBACK_MODEL
    }


@canary("keras_training.has_strategy", "Model._distribute_strategy", of="keras")
def test_a_model_made_under_a_strategy_is_known(model):
    assert not keras_training.has_strategy(model)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        distributed = keras.Sequential([keras.layers.Dense(1)])
    assert keras_training.has_strategy(distributed)


@canary("keras_training.compile_arguments", "Trainer._compile_config", of="keras")
def test_what_a_model_was_compiled_with_is_known(model):
    known = keras_training.compile_arguments(model)
    assert (known["loss"], known["metrics"]) == ("mse", ["mae"])
    assert set(known) <= {*inspect.signature(keras.Model.compile).parameters}


@canary("keras_training.flush", "CallbackList._flush_futures", of="keras")
def test_callbacks_in_threads_are_waited_for(model):
    seen = []

    class Slow(keras.callbacks.Callback):
        async_safe = True

        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)

    callbacks = keras.callbacks.CallbackList([Slow()], model=model)
    callbacks.on_train_batch_end(3)
    keras_training.flush(callbacks)
    assert seen == [3]


@canary("keras_training.progress_bar", "CallbackList._progbar", of="keras")
def test_the_progress_bar_of_a_callback_list_is_found(model):
    for wanted in (True, False):
        callbacks = keras.callbacks.CallbackList(add_progbar=wanted, model=model)
        assert (keras_training.progress_bar(callbacks) is not None) == wanted


@canary("keras_training.plain_logs", "keras.src.utils.python_utils.pythonify_logs", of="keras")
def test_logs_become_plain_numbers():
    assert keras_training.plain_logs({"loss": tf.constant(2.0)}) == {"loss": 2.0}


@canary("keras_training.knowing_if_eager", "Model.run_eagerly", of="keras")
def test_a_model_knows_for_a_while_that_tensorflow_runs_its_steps_eagerly(model):
    with keras_training.knowing_if_eager(model):
        assert not model.run_eagerly
    tf.config.run_functions_eagerly(True)
    try:
        with keras_training.knowing_if_eager(model):
            assert model.run_eagerly
            assert not model.jit_compile
    finally:
        tf.config.run_functions_eagerly(False)
    assert not model.run_eagerly


@canary(
    "keras_training.build",
    "Model._compile_loss",
    "Model._compile_metrics",
    "Trainer._symbolic_build",
    of="keras",
)
def test_all_variables_exist_before_the_first_step(model):
    keras_training.build(model, np.ones((1, 2)), np.ones((1, 1)), None)
    assert model.optimizer.built
    assert {metric.name for metric in model.metrics} >= {"loss", "compile_metrics"}
    assert keras_training.losses(model)


def test_losses_are_built_without_metrics_and_optimizer(model):
    keras_training.build(model, np.ones((1, 2)), np.ones((1, 1)), None, losses_alone=True)
    assert not model.optimizer.built
    assert keras_training.losses(model)


def test_losses_are_built_where_an_output_has_none():
    x = keras.Input((2,))
    hidden = keras.layers.Dense(3)(x)
    model = keras.Model(x, [keras.layers.Dense(1)(hidden), hidden])
    model.compile("adam", ["mse", None])
    keras_training.build(model, np.ones((1, 2)), np.ones((1, 1)), None, losses_alone=True)
    assert len(keras_training.losses(model)) == 1


@canary("keras_training.compute_loss", "Trainer._compute_loss", of="keras")
def test_the_loss_is_computed_with_what_an_override_takes(model):
    y = tf.zeros([1, 1])
    assert float(keras_training.compute_loss(model, None, y, y + 3, None, training=True)) == 9.0

    class Override(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return tf.constant(7.0)

    assert float(keras_training.compute_loss(Override(), None, y, y, None, training=True)) == 7.0


@canary("keras_training.compute_compiled_loss", "Model._compile_loss", of="keras")
def test_the_compiled_loss_is_computed_alone(model):
    y = tf.zeros([1, 1])
    assert float(keras_training.compute_compiled_loss(model, y, y + 3, None)) == 9.0


@canary("keras_training.track_loss", "Model._loss_tracker", of="keras")
def test_the_loss_metric_is_given_a_loss(model):
    keras_training.track_loss(model, tf.constant(4.0), 2)
    assert {metric.name: float(metric.result()) for metric in model.metrics[:1]} == {"loss": 4.0}


@canary("keras_training.losses", "CompileLoss._flat_losses", of="keras")
def test_each_output_has_its_loss(two_outputs):
    assert [loss.name for loss in keras_training.losses(two_outputs)] == ["mse", "mae"]


@canary("keras_training.loss_metrics", "CompileLoss.metrics", of="keras")
def test_each_output_has_a_metric_of_its_loss(two_outputs):
    assert [metric.name for metric in keras_training.loss_metrics(two_outputs)] == ["a_loss", "b_loss"]


@canary("keras_training.compiled_mark", "Model._loss_tracker", of="keras")
def test_every_compile_has_another_mark(model):
    mark = keras_training.compiled_mark(model)
    assert mark is keras_training.compiled_mark(model)
    model.compile("sgd", "mse")
    assert mark is not keras_training.compiled_mark(model)


@canary("keras_training.kept_steps", "Model._loss_tracker", of="keras")
def test_steps_are_kept_until_the_next_compile_and_not_copied(model):
    keras_training.kept_steps(model)["step"] = object()
    assert keras_training.kept_steps(copy.deepcopy(model)) == {}
    assert "step" in keras_training.kept_steps(model)
    model.compile("sgd", "mse")
    assert keras_training.kept_steps(model) == {}


@canary("keras_training.replaced_losses", "CompileLoss._flat_losses", "CompileLoss._metrics", of="keras")
def test_losses_are_replaced_for_a_time(two_outputs):
    y = [tf.zeros([1, 1])] * 2
    before = float(two_outputs.compute_loss(y=y, y_pred=y))
    stand_ins = [lambda *_, **__: tf.constant(2.0), lambda *_, **__: tf.constant(3.0)]
    metrics = [keras.metrics.Mean(), keras.metrics.Mean()]
    with keras_training.replaced_losses(two_outputs, stand_ins, metrics):
        assert float(two_outputs.compute_loss(y=y, y_pred=y)) == 5.0
    assert [float(metric.result()) for metric in metrics] == [2.0, 3.0]
    assert float(two_outputs.compute_loss(y=y, y_pred=y)) == before


@canary("keras_training.replaced_additional_loss", "Layer._aggregate_additional_loss", of="keras")
def test_added_losses_are_replaced_for_a_time():
    model = keras.Sequential([keras.Input((2,)), keras.layers.ActivityRegularization(l1=1.0)])
    model.compile("sgd", "mse")
    x = tf.ones([1, 2])
    y = model(x, training=True)
    with keras_training.replaced_additional_loss(model, lambda loss, total: 10.0 * total):
        assert float(model.compute_loss(x, y, y)) == pytest.approx(20.0)
    assert float(model.compute_loss(x, y, y)) == pytest.approx(2.0)


@canary("keras_training.masked_weights", "keras.src.losses.loss.apply_mask", of="keras")
def test_what_is_masked_weighs_nothing():
    weights = keras_training.masked_weights(tf.constant([2.0, 3.0]), tf.constant([True, False]), "float32")
    assert weights.numpy().tolist() == [2.0, 0.0]


@canary("keras_training.aligned", "keras.src.losses.loss.squeeze_or_expand_to_same_rank", of="keras")
def test_values_and_weights_are_brought_to_one_rank():
    values, weights = keras_training.aligned(tf.ones([2, 1]), tf.ones([2]))
    assert values.shape.rank == weights.shape.rank
