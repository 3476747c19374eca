"""Optimizers that keep less under guard, in plans and in estimates: measured in the arena."""

from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import memfit
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers import LEVERS
from memfit.planning.levers.immediate_update import ImmediateUpdate
from memfit.planning.levers.lighter_state import AdafactorVelocity, EightBitMoments, LighterOptimizer
from memfit.planning.levers.optimizer_state import OptimizerState
from memfit.planning.levers.table_rows import TableRows
from memfit.steps.lighter_state import LighterState
from memfit.steps.recipe import Recipe
from prepared import in_arena, run_forked
from training import hunger, parity

cloudpickle.register_pickle_by_value(hunger)
cloudpickle.register_pickle_by_value(parity)

BATCH = 16
MIB = 2**20
EIGHT_BIT = LighterState("8-bit moments")


def network(optimizer: Any, *extra: Any, depth: int = 4, width: int = 128) -> Any:
    """A network whose weights are most of its training."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    wide = [layers.Dense(width, "relu") for _ in range(depth)]
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
    model = network(optimizer, hunger.Hungry())
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


def many_weights(optimizer: Any) -> Any:
    """A network of many equal weights: which two are updated at once, as threads decide, is little of its peak."""
    return network(optimizer, depth=12, width=384)


def plan_in_8_bits() -> tuple[int, int, Any]:
    """Plans for less than Adam needs; with the other levers' recipes there would be a dozen recordings."""
    LEVERS[:] = [EightBitMoments(), ImmediateUpdate()]
    stock = memfit.estimate(many_weights("adam"), BATCH, data=data())
    eight = memfit.estimate(many_weights(memfit.optimizers.Adam8bit()), BATCH, data=data())
    plan = memfit.plan(many_weights("adam"), BATCH, int(0.85 * stock.needed), "precision", data=data())
    return int(stock.breakdown["optimizer state"]), int(eight.breakdown["optimizer state"]), plan


def train(plan: Any) -> tuple[int, list[float], list[Any], str, set[str]]:
    import keras

    import memfit

    model, losses = many_weights("adam"), []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    x, y = data()
    arguments = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": [note]}
    if plan is None:
        model.fit(x, y, **arguments)
        return 0, losses, [], "", set()
    run = memfit.fit(model, x, y, plan=plan, **arguments).memory
    kinds = {variable.dtype for variable in model.optimizer.variables}
    return int(run.measured), losses, list(run.events), type(model.optimizer).__name__, kinds


def test_a_plan_with_8_bit_moments_is_measured_as_predicted_and_hands_adam_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path))  # estimate and plan ask the same recording
    stock, eight, plan = run_forked(plan_in_8_bits)
    assert eight == pytest.approx(0.254 * stock, rel=0.1)
    assert EIGHT_BIT in plan.recipe.changes
    assert str(plan.fidelity) == "precision"
    assert "in 8 bits during training" in repr(plan)
    assert memfit.Plan.from_json(plan.to_json()) == plan
    measured, losses, events, name, kinds = in_arena(train, plan, memory=int(1.3 * plan.memory))
    assert not events
    assert name == "Adam"
    assert "int8" not in kinds
    # `plan.predicted` counts gaps that a tight memory has; here is more, to give Adam its state back.
    assert measured == pytest.approx(plan.timeline.peak, rel=0.05)
    np.testing.assert_allclose(losses, in_arena(train, None, memory="1GiB")[1], rtol=0.02)


def _job(optimizer: Any) -> Job:
    return Job(network(optimizer), BATCH, memfit.Size(MIB), Fidelity.EXACT)


@pytest.mark.parametrize(
    ("lever", "optimizer", "fidelity", "others"),
    [
        (EightBitMoments(), "adamw", "precision", "adafactor"),
        (AdafactorVelocity(), "adafactor", "exact", "adam"),
    ],
    ids=["adam", "adafactor"],
)
def test_a_lever_is_for_its_optimizer_and_its_recipe_is_saved_and_undone(
    lever: LighterOptimizer, optimizer: str, fidelity: str, others: str
) -> None:
    job = _job(optimizer)
    assert lever.why_not(job) is None
    assert "works only with" in str(lever.why_not(_job(others)))
    assert str(lever.fidelity(job)) == fidelity
    (recipe,) = lever.offer(job, Recipe(), BATCH)
    assert lever.is_used(recipe)
    assert lever.undo(recipe) == Recipe()
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert lever.form in str(recipe)


def test_others_are_told_what_less_state_would_save() -> None:
    lever = OptimizerState()
    assert "8-bit moments save more" in str(lever.why_not(_job("adam")))
    job = _job("nadam")
    assert lever.why_not(job) is None
    assert "memfit.optimizers.Adam8bit keeps less than Nadam" in lever.explain(job)
    weights = sum(int(np.prod(v.shape)) for v in job.model.trainable_variables if np.prod(v.shape) >= 4096)
    assert lever.advise_saving(job, BATCH) == pytest.approx(6 * weights, rel=0.02)


def test_what_is_kept_for_all_rows_of_embeddings_is_told() -> None:
    import keras

    def job(optimizer: Any, rows: int = 5000) -> Job:
        table = keras.layers.Embedding(rows, 64)
        model = keras.Sequential([keras.Input((4,), dtype="int32"), table, keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        return Job(model, BATCH, memfit.Size(MIB), Fidelity.EXACT)

    lever = TableRows()
    assert lever.why_not(job("adam")) is None
    assert lever.advise_saving(job("adam"), BATCH) == 2 * 4 * 5000 * 64
    assert "Adam keeps state for all rows of 1 table(s)" in lever.explain(job("adam"))
    assert "keeps nothing" in str(lever.why_not(job("sgd")))
    assert "no large embedding" in str(lever.why_not(job("adam", rows=50)))
