"""Where weights are most of a training and not all gradients fit, the plan updates as stock Keras does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memfit
from memfit.steps.recipe import Recipe
from prepared import in_arena, run_forked

BATCH = 16


def network() -> Any:
    """A network whose weights are most of its training."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((256,)), *(layers.Dense(1024, "relu") for _ in range(4)), layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", jit_compile=False)
    return model


def data() -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    return random.random((3 * BATCH, 256), "float32"), random.random((3 * BATCH, 1), "float32")


def plan_tightly() -> Any:
    """Plans for what stock Keras's own step is said to need."""
    model = network()
    needed = memfit.estimate(model, BATCH, data=data()).needed
    return needed, memfit.plan(model, BATCH, needed, "exact", data=data())


def train(plan: Any) -> tuple[list[float], list[Any]]:
    import keras

    import memfit

    model, losses = network(), []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    x, y = data()
    arguments = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": [note]}
    if plan is None:
        model.fit(x, y, **arguments)
        return losses, []
    run = memfit.fit(model, x, y, plan=plan, **arguments).memory
    return losses, list(run.events)


def test_what_an_estimate_says_is_needed_is_enough_for_a_plan_and_its_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Both ask the same recording: two recordings of a step differ by a few percent.
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path))
    needed, plan = run_forked(plan_tightly)
    assert plan.recipe.micro_batch is None
    assert plan.recipe.segments is None
    assert plan.predicted + plan.margin <= needed
    losses, events = in_arena(train, plan, memory=needed)
    assert not events
    np.testing.assert_allclose(losses, in_arena(train, None, memory="1GiB")[0], rtol=1e-6)


def test_immediate_updates_are_not_combined_with_other_steps() -> None:
    with pytest.raises(memfit.InvalidInput, match="Keras's own train_step"):
        Recipe(micro_batch=2, immediate_update=True)


def test_a_recipe_with_immediate_updates_is_saved_and_read_again() -> None:
    recipe = Recipe(immediate_update=True)
    assert Recipe.from_json(recipe.to_json()) == recipe


def run_out() -> tuple[bool, str]:
    """Lets a step with immediate updates run out of memory."""
    from dataclasses import replace

    import keras
    import tensorflow as tf

    import memfit
    from memfit.steps.recipe import Recipe

    class Hungry(keras.layers.Layer):
        def call(self, x):
            return x + tf.reduce_mean(tf.fill([2**25], tf.reduce_mean(x)))

    x, y = np.ones((4, 4), "float32"), np.ones((4, 1), "float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Hungry(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    plan = memfit.plan(model, 2, "16GiB", data=(x, y))
    with pytest.raises(memfit.OutOfMemory) as caught:
        memfit.fit(model, x, y, plan=replace(plan, recipe=Recipe(immediate_update=True)), verbose=0)
    return caught.value.intact, str(caught.value)


def test_a_step_with_immediate_updates_that_runs_out_is_said_to_have_changed_weights() -> None:
    intact, says = in_arena(run_out, memory="64MiB")
    assert not intact
    assert "continue from a checkpoint" in says
