"""A plan that turns out too tight or too loose says so after the steps that a prediction is about."""

from dataclasses import replace

import keras
import numpy as np
import pytest

import memfit
from memfit import Size
from memfit.planning.fidelity import Fidelity
from memfit.steps.recipe import Recipe
from memfit.training.run import judge
from prepared import in_arena

MIB = 2**20
PLAN = memfit.Plan(
    model="",
    batch_size=8,
    memory=Size(100 * MIB),
    fidelity=Fidelity.EXACT,
    recipe=Recipe(4),
    stock=Size(140 * MIB),
    predicted=Size(90 * MIB),
    margin=Size(9 * MIB),
    time=1.1,
    source="",
)


def test_a_plan_that_turns_out_as_predicted_says_nothing():
    assert judge(PLAN, 90 * MIB) is None
    assert judge(PLAN, 100 * MIB) is None, "it fits what was asked for, gaps between tensors included"
    assert judge(PLAN, 80 * MIB) is None
    assert judge(PLAN, 0) is None, "a CPU outside of an arena does not count"
    assert judge(replace(PLAN, is_bound=True), 10 * MIB) is None
    assert judge(replace(PLAN, predicted=Size(0)), 10 * MIB) is None, "a plan made by hand"


def test_a_plan_that_is_too_tight_says_what_to_ask_for():
    assert judge(PLAN, 120 * MIB) == (
        "The plan is too tight: 120 MiB measured, 90 MiB predicted (+33%). Make it with memory='75MiB' instead."
    )


def test_a_plan_that_is_too_loose_says_what_stock_would_take():
    assert judge(PLAN, 45 * MIB) == (
        "The plan is too loose: 45 MiB measured, 90 MiB predicted (-50%). "
        "Stock Keras would take about 70 MiB of 100 MiB: make it with memory='200MiB'."
    )
    assert judge(replace(PLAN, recipe=Recipe()), 45 * MIB) is None


def _train(memory: int) -> list[str]:
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(512, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    plan = memfit.plan(model, 64, memory="256MiB")
    plan = replace(plan, is_bound=False, predicted=Size(memory), memory=Size(memory))
    x, y = np.ones((256, 256), "float32"), np.ones((256, 1), "float32")
    history = memfit.fit(model, x, y, plan=plan, epochs=2, verbose=0)
    return [str(event) for event in history.memory.events]


@pytest.mark.parametrize(("memory", "count"), [(1 * MIB, 1), (64 * MIB, 0)])
def test_it_is_said_once(memory, count):
    events = in_arena(_train, memory, memory="256MiB")
    assert len(events) == count
    assert all(event.startswith("The plan is too tight") for event in events)
