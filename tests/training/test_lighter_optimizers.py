"""Optimizers that keep less under guard, in plans and in estimates: measured in the arena."""

from typing import Any

import cloudpickle
import numpy as np
import pytest

import memfit
from memfit.steps.lighter_state import LighterState
from memfit.steps.recipe import Recipe
from prepared import in_arena, run_forked
from training import hunger, parity

cloudpickle.register_pickle_by_value(hunger)
cloudpickle.register_pickle_by_value(parity)

BATCH = 16
MIB = 2**20
EIGHT_BIT = LighterState("8-bit moments")


def network(optimizer: Any, *extra: Any, width: int = 768) -> Any:
    """A network whose weights are most of its training."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    wide = [layers.Dense(width, "relu") for _ in range(4)]
    model = keras.Sequential(
        [keras.Input((256,)), *wide, *extra, layers.Dropout(0.1, seed=3), layers.Dense(1)]
    )
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def data() -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    return random.random((4 * BATCH, 256), "float32"), random.random((4 * BATCH, 1), "float32")


def train_hungry(courses: dict[int, str], borrowed: bool) -> tuple[list[Any], list[str]]:
    """Trains with shortages; returns all variables, and what was said."""
    import keras

    import memfit

    class HungryAdam8bit(memfit.optimizers.Adam8bit):
        def update_step(self, gradient, variable, learning_rate):
            if self._get_variable_index(variable) == 4:
                gradient = hunger.eat("update", gradient)
            super().update_step(gradient, variable, learning_rate)

    optimizer = keras.optimizers.Adam() if borrowed else HungryAdam8bit()
    model = network(optimizer, hunger.Hungry(), width=128)
    x, y = data()
    with hunger.sated_by_a_warning() as said:
        memfit.fit(
            model,
            x,
            y,
            plan=parity.levers(model, BATCH, changes=(EIGHT_BIT,) if borrowed else ()),
            shuffle=False,
            verbose=0,
            callbacks=[hunger.Menu(courses)],
        )
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)], said


def train_with_and_without_shortages(courses: dict[int, str], borrowed: bool) -> tuple[bool, list[str]]:
    calm, nothing = train_hungry({}, borrowed)
    assert not nothing
    values, said = train_hungry(courses, borrowed)
    return all(np.array_equal(a, b) for a, b in zip(calm, values, strict=True)), said


@pytest.mark.parametrize(
    ("borrowed", "courses"), [(False, {2: "forward", 3: "update"}), (True, {2: "forward"})]
)
def test_a_shortage_leaves_no_trace_in_moments_of_8_bits(borrowed: bool, courses: dict[int, str]) -> None:
    same, said = in_arena(train_with_and_without_shortages, courses, borrowed, memory="512MiB")
    assert len(said) == len(courses)
    assert same


def plan_in_8_bits() -> tuple[Any, Any, Any, Any]:
    import keras

    stock = memfit.estimate(network("adam"), BATCH, data=data())
    eight = memfit.estimate(network(memfit.optimizers.Adam8bit()), BATCH, data=data())
    tight = int(0.9 * stock.needed)
    with pytest.raises(memfit.DoesNotFit, match="precision"):
        memfit.plan(network("adam"), BATCH, tight, "near", data=data())
    plan = memfit.plan(network("adam"), BATCH, tight, "precision", data=data())
    exact = memfit.plan(network(keras.optimizers.Adafactor()), BATCH, tight, "exact", data=data())
    return stock, eight, plan, exact


def train(plan: Any) -> tuple[int, list[float], list[Any], str, set[str]]:
    import keras

    import memfit

    model, losses = network("adam"), []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    x, y = data()
    arguments = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": [note]}
    if plan is None:
        model.fit(x, y, **arguments)
        return 0, losses, [], "", set()
    run = memfit.fit(model, x, y, plan=plan, **arguments).memory
    kinds = {variable.dtype for variable in model.optimizer.variables}
    return int(run.measured), losses, list(run.events), type(model.optimizer).__name__, kinds


def test_a_plan_with_8_bit_moments_is_measured_as_predicted_and_hands_adam_back() -> None:
    stock, eight, plan, _ = run_forked(plan_in_8_bits)
    state = stock.breakdown["optimizer state"]
    assert eight.breakdown["optimizer state"] == pytest.approx(0.254 * state, rel=0.1)
    assert EIGHT_BIT in plan.recipe.changes
    assert str(plan.fidelity) == "precision"
    assert "rounded to 8 bits while it trains" in repr(plan)
    assert memfit.Plan.from_json(plan.to_json()) == plan
    measured, losses, events, name, kinds = in_arena(train, plan, memory=plan.memory)
    assert not events
    assert name == "Adam"
    assert "int8" not in kinds
    assert measured == pytest.approx(plan.predicted, rel=0.05)
    np.testing.assert_allclose(losses, in_arena(train, None, memory="1GiB")[1], rtol=0.02)


def test_a_recipe_with_a_lighter_state_is_saved_and_read_again() -> None:
    recipe = Recipe(changes=(EIGHT_BIT,))
    assert Recipe.from_json(recipe.to_json()) == recipe
