"""An update that is cut off half-way and finished gives what an uninterrupted one gives, to the last bit."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, optimizers

from memfit.optimizers import Adafactor, Adam8bit, adam8bit
from memfit.steps.gradients import GradientShelf
from memfit.steps.update import Update

RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, 11, (8, 6)).astype("int32")
Y = RANDOM.normal(size=(8, 3)).astype("float32")

OPTIMIZERS: dict[str, tuple[type, dict[str, Any]]] = {
    "SGD with momentum": (optimizers.SGD, {"momentum": 0.9, "nesterov": True}),
    "Adam with schedule and clipping": (
        optimizers.Adam,
        {"learning_rate": optimizers.schedules.ExponentialDecay(0.1, 2, 0.9), "global_clipnorm": 0.5},
    ),
    "AdamW with EMA": (optimizers.AdamW, {"use_ema": True, "clipnorm": 1.0}),
    "RMSprop": (optimizers.RMSprop, {"momentum": 0.9}),
    "Adadelta": (optimizers.Adadelta, {"learning_rate": 1.0}),
    "Nadam": (optimizers.Nadam, {}),
    "Ftrl": (optimizers.Ftrl, {}),
    "Adafactor": (optimizers.Adafactor, {}),
    "Lion": (optimizers.Lion, {}),
    "Adafactor without velocity": (Adafactor, {}),
    "Adam in 8 bits": (Adam8bit, {"use_ema": True, "weight_decay": 0.01}),
}


@pytest.fixture(autouse=True)
def _small_weights_in_8_bits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adam8bit, "SMALLEST", 12)


class Trap:
    """A switch that lets an update fail when it reaches the third weight."""

    def __init__(self) -> None:
        self.set = tf.Variable(False, trainable=False)

    def optimizer(self, kind: type, arguments: dict[str, Any]) -> Any:
        trap = self.set

        class Trapped(kind):  # type: ignore[misc]
            def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
                if self._get_variable_index(variable) == 2:
                    with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(trap), ["trapped"])]):
                        gradient = tf.identity(gradient)
                super().update_step(gradient, variable, learning_rate)

        return Trapped(**arguments)


def network(optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(11, 5),
            layers.Flatten(),
            layers.Dense(4, activation="tanh", kernel_constraint="non_neg"),
            layers.Dense(3),
        ]
    )
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    return model


def trained(
    optimizer: Any, trap: Trap, cut_off: int | None, *, own_buffers: bool = False
) -> tuple[list[Any], str | None]:
    """Four updates, one of them cut off; returns all variables, and why it could not be finished."""
    model = network(optimizer)
    shelf = GradientShelf(own_buffers=own_buffers)
    update = Update(model, shelf)

    @tf.function
    def gradients() -> None:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(X, Y, model(X, training=True))
            loss = optimizer.scale_loss(loss)
        shelf.put(tape.gradient(loss, model.trainable_weights), model.trainable_weights)

    for number in range(4):
        shelf.take_places()
        gradients()
        trap.set.assign(number == cut_off)
        if number != cut_off:
            update.run()
            continue
        with pytest.raises(tf.errors.InvalidArgumentError, match="trapped"):
            update.run()
        trap.set.assign(False)
        assert update.begun
        if update.lost is not None:
            return [], update.lost
        update.finish_from_host()
    assert not update.begun
    assert own_buffers or all(place.shape == (0,) for place in map(tf.convert_to_tensor, shelf.buffers()))
    return [variable.numpy() for variable in (*model.variables, *optimizer.variables)], None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_is_finished_from_where_it_was_cut_off(name: str) -> None:
    trap = Trap()
    whole, _ = trained(trap.optimizer(*OPTIMIZERS[name]), trap, None)
    cut, reason = trained(trap.optimizer(*OPTIMIZERS[name]), trap, 2)
    assert reason is None
    for a, b in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(a, b)
    stock = network(OPTIMIZERS[name][0](**OPTIMIZERS[name][1]))
    for _ in range(4):
        stock.train_on_batch(X, Y)
    for a, b in zip([*stock.variables, *stock.optimizer.variables], whole, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_gradients_that_are_added_up_in_places_of_their_own_are_finished_from_the_host_too() -> None:
    results = []
    for cut_off in (None, 1):
        trap = Trap()
        results.append(trained(trap.optimizer(optimizers.Adam, {}), trap, cut_off, own_buffers=True)[0])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_update_from_the_host_that_is_cut_off_still_has_its_gradients() -> None:
    weight = keras.Variable(np.zeros(3, "float32"), name="weight")
    shelf = GradientShelf()
    shelf.put([tf.constant([1.0, 2.0, 3.0])], [weight])
    for _ in range(2):
        shelf.move_to_host()
        np.testing.assert_array_equal(shelf.read(weight), [1, 2, 3])
    shelf.take_places()
    shelf.put([tf.constant([4.0, 5.0, 6.0])], [weight])
    shelf.move_to_host()
    np.testing.assert_array_equal(shelf.read(weight), [4, 5, 6])


def test_loss_scaling_around_an_optimizer_is_finished_too() -> None:
    results = []
    for cut_off in (None, 2):
        trap = Trap()
        inner = trap.optimizer(optimizers.Adam, {})
        results.append(trained(optimizers.LossScaleOptimizer(inner), trap, cut_off)[0])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_optimizer_with_branches_is_said_to_be_unable() -> None:
    trap = Trap()
    optimizer = trap.optimizer(optimizers.Adam, {"gradient_accumulation_steps": 2})
    _, reason = trained(optimizer, trap, 3)
    assert reason is not None
    assert "If" in reason
