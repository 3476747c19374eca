"""A loop of one's own in little memory: planned, rolled back and replayed, with the weights of a plain tape."""

from typing import Any

import cloudpickle
import numpy as np
import pytest

from prepared import in_arena
from training import hunger

cloudpickle.register_pickle_by_value(hunger)


def network() -> Any:
    """Large activations, small weights, and all that a step changes: statistics and a dropout's seed."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(3)
    inputs = x = keras.Input((16,))
    x = layers.Dense(2048)(x)
    for _ in range(8):
        x = layers.Activation("tanh")(x)
    x = layers.Dropout(0.2)(x)
    x = hunger.Hungry()(layers.BatchNormalization(momentum=0.5)(layers.Dense(4)(x)))
    return keras.Model(inputs, layers.Dense(1)(x))


def train(
    decorate: Any, updates: int = 4, before: Any = None, batch: int = 512
) -> tuple[list[Any], list[float], Any]:
    """Trains in a loop; returns all variables, the losses and the function."""
    import keras
    import tensorflow as tf

    model, optimizer = network(), keras.optimizers.Adam(0.01)
    mean_squares, mean = keras.losses.MeanSquaredError(), keras.metrics.Mean()
    x = tf.constant(np.random.default_rng(1).normal(size=(batch, 16)).astype("float32"))

    def loss(x: Any, y: Any) -> Any:
        predicted = model(x, training=True)
        mean.update_state(predicted)
        return mean_squares(y, predicted)

    step, losses = decorate(loss, model.trainable_variables), []
    for number in range(updates):
        if before is not None:
            before(number)
        value, grads = step(x, x[:, :1])
        optimizer.apply(grads, model.trainable_variables)
        losses.append(float(value))
    return [v.numpy() for v in (*model.variables, *mean.variables)], losses, step


def plain(loss: Any, variables: Any) -> Any:
    import tensorflow as tf

    @tf.function
    def step(*batch: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(*batch)
        return value, tape.gradient(value, variables)

    return step


def rolled_back() -> dict[str, Any]:
    import memfit

    courses = {1: "forward", 2: "backward"}

    def eat(number: int) -> None:
        if number in courses:
            hunger.appetite(courses[number]).assign(hunger.ALL)

    calm = train(plain)
    with hunger.sated_by_a_warning():
        state, losses, loss = train(lambda f, v: memfit.gradients(v, allow="exact")(f), before=eat)
    return {
        "state": [
            np.array_equal(a, b) or float(np.abs(a - b).max()) for a, b in zip(calm[0], state, strict=True)
        ],
        "losses": (calm[1], losses),
        "events": [event.to_json() for event in loss.memory.events],
    }


@pytest.fixture(scope="module")
def after_shortages() -> dict[str, Any]:
    return in_arena(rolled_back, memory="256MiB")


def test_a_real_shortage_in_either_pass_is_rolled_back_and_replayed(after_shortages):
    assert [event["phase"] for event in after_shortages["events"]] == ["training", "training"]
    assert all("Rolled back" in event["done"] for event in after_shortages["events"])


def test_after_a_replay_weights_statistics_and_metrics_are_those_of_a_calm_loop(after_shortages):
    np.testing.assert_allclose(*after_shortages["losses"], rtol=1e-6)
    assert all(same is True or same < 1e-6 for same in after_shortages["state"])


def measured() -> dict[str, Any]:
    import tensorflow as tf

    import memfit

    state, losses, _ = train(plain)
    guarded = train(lambda f, v: memfit.gradients(v)(f))[2]
    estimate = memfit.estimate(guarded, tf.TensorSpec([512, 16]), tf.TensorSpec([512, 1]))
    return {
        "state": state,
        "losses": losses,
        "peak": int(guarded.memory.measured),
        "estimate": int(estimate.peak),
    }


def planned(memory: int) -> dict[str, Any]:
    import memfit

    state, losses, loss = train(lambda f, v: memfit.gradients(v, memory=memory, allow="exact")(f))
    return {"state": state, "losses": losses, "plan": loss.plan.to_json(), "run": loss.memory.to_json()}


@pytest.fixture(scope="module")
def plain_loop() -> dict[str, Any]:
    return in_arena(measured, memory="400MiB")


@pytest.fixture(scope="module")
def in_half(plain_loop: dict[str, Any]) -> dict[str, Any]:
    """Trained in an arena of no more than that: what other trainings leave in an allocator moves its peaks."""
    half = -(-plain_loop["peak"] * 6 // 10 // 2**20) * 2**20
    return in_arena(planned, half, memory=half)


def test_a_plan_for_about_half_of_the_memory_trains_to_the_same_weights(plain_loop, in_half):
    assert in_half["plan"]["fidelity"] == "exact"
    assert in_half["plan"]["recipe"]["segments"] is not None
    np.testing.assert_allclose(plain_loop["losses"], in_half["losses"], rtol=1e-5)
    for one, two in zip(plain_loop["state"], in_half["state"], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    assert in_half["run"]["events"] == []


def test_an_estimate_of_a_function_is_near_what_its_loop_takes(plain_loop):
    assert plain_loop["estimate"] == pytest.approx(plain_loop["peak"], rel=0.25)
