"""A training that took more than it was planned for, or much less, says so at its end, and advises no guess."""

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


def test_a_peak_over_the_budget_is_said_and_no_memory_advised():
    assert judge(PLAN, 120 * MIB) == (
        "The peak was 120 MiB, 20 MiB over the 100 MiB it was planned for (90 MiB predicted). "
        "A smaller batch takes less."
    )
    assert "(90 MiB at most)" in judge(replace(PLAN, is_bound=True), 120 * MIB)


def test_a_plan_that_needed_much_less_is_said_to_have_cost_nothing_but_that():
    assert judge(PLAN, 45 * MIB) == (
        "Less memory was needed than planned: the peak was 45 MiB, 90 MiB predicted. Results are not affected."
    )
    assert judge(replace(PLAN, recipe=Recipe()), 45 * MIB) is None
    assert judge(PLAN, 45 * MIB, ran_out=True) is None, "the steps were other ones than planned"
    assert judge(PLAN, 110 * MIB, ran_out=True) is None, "the step that ran out took all there was"


def _train(memory: int, batch: int, micro_batch: int | None) -> list[str]:
    layers = [keras.layers.Dense(1024), keras.layers.Activation("relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile("adam", "mse", jit_compile=False)
    plan = memfit.plan(model, batch, memory="8GiB")
    plan = replace(
        plan, is_bound=False, predicted=Size(memory), memory=Size(memory), recipe=Recipe(micro_batch)
    )
    x, y = np.ones((2 * batch, 64), "float32"), np.ones((2 * batch, 1), "float32")
    history = memfit.fit(model, x, y, plan=plan, epochs=2, verbose=0)
    return [str(event) for event in history.memory.events]


@pytest.mark.parametrize(
    ("memory", "micro_batch", "begins"),
    [(1 * MIB, None, "The peak was "), (64 * MIB, None, ""), (64 * MIB, 32, "Less memory was needed than")],
)
def test_it_is_said_once_at_the_end(memory, micro_batch, begins):
    events = in_arena(_train, memory, 64, micro_batch, memory="256MiB")
    assert len(events) == bool(begins)
    assert all(event.startswith(begins) for event in events)


def test_memory_that_ran_out_is_not_contradicted():
    events = in_arena(_train, 1024 * MIB, 8192, 4096, memory="28MiB")
    assert any(event.startswith("Out of memory in training") for event in events)
    assert not any("memory was needed" in event for event in events), events
