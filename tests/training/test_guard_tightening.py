"""Tightening goes as far as it may, in steps that what is known of the shortage asks for."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import memfit
from memfit.planning import job
from memfit.planning.fidelity import Fidelity
from memfit.steps.micro_batches.exactness import Verdict
from memfit.steps.recipe import Recipe
from memfit.training.guard.tightening import Tightening
from prepared import in_arena
from training.hunger import appetite, eat
from training.parity import levers

DATA = (np.zeros((32, 64), "float32"), np.zeros((32, 1), "float32"))


def network(normalised: bool, custom: bool = False) -> keras.Model:
    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    inputs = x = keras.Input((64,))
    for _ in range(6):
        x = layers.Dense(64)(x)
        x = layers.Activation("tanh")(layers.BatchNormalization()(x) if normalised else x)
    model = (Own if custom else keras.Model)(inputs, layers.Dense(1)(x))
    model.compile("sgd", "mse")
    return model


def way_down(model: keras.Model, allow: Fidelity) -> list[tuple[Recipe, str]]:
    """All settings from stock Keras's to the tightest, where nothing is known of the shortage."""
    tightening = Tightening(model, allow)
    found: list[tuple[Recipe, str]] = []
    now = Recipe()
    while (following := tightening.tighter(now, DATA, None, None)) is not None:
        found.append(following)
        now = following[0]
        assert len(found) < 30
    return found


def test_without_batch_statistics_micro_batches_come_first_and_segments_last() -> None:
    way = way_down(network(False), Fidelity.EXACT)
    assert [settings.micro_batch for settings, _ in way[:5]] == [16, 8, 4, 2, 1]
    assert all(settings.segments is None for settings, _ in way[:5])
    last = way[-1][0]
    assert last.micro_batch == 1
    assert last.segments is not None
    assert {remark for _, remark in way} == {""}


def test_with_batch_statistics_an_exact_plan_is_only_rematerialised() -> None:
    way = way_down(network(True), Fidelity.EXACT)
    assert way
    assert all(settings.micro_batch is None and settings.segments is not None for settings, _ in way)


def test_with_batch_statistics_and_near_allowed_micro_batches_come_last_and_are_named() -> None:
    way = way_down(network(True), Fidelity.NEAR)
    assert way[0][0].micro_batch is None
    assert way[-1][0].micro_batch == 4  # over one sample a feature would be normalised to a constant
    assert way[-1][0].segments is not None
    assert "near, not exact" in way[-1][1]


def test_a_custom_step_is_rematerialised_and_never_cut() -> None:
    found = [recipe for recipe, _ in way_down(network(False, custom=True), Fidelity.NEAR)]
    assert found
    assert all(recipe.segments is not None and recipe.micro_batch is None for recipe in found)


def test_a_loss_that_does_not_add_up_is_not_cut_under_an_exact_plan() -> None:
    keras.utils.set_random_seed(1)
    model = network(False)
    # Not of a distance to 1, which is about the same for all samples of a network that has not been trained.
    model.compile("sgd", lambda y, prediction: keras.ops.sqrt(keras.ops.mean(keras.ops.square(prediction))))
    tightening = Tightening(model, Fidelity.EXACT)
    data = (np.random.default_rng(0).normal(size=(32, 64)).astype("float32"), DATA[1])
    found = tightening.tighter(Recipe(), data, None, None)
    assert found is not None
    assert found[0].micro_batch is None


def test_micro_batches_that_were_planned_are_not_tried_again_where_memory_has_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trial would run out as well, in 10 s for each of its ops, and micro-batches then be called near."""
    model = network(False)
    model.compile("sgd", lambda y, prediction: keras.ops.mean(keras.ops.square(y - prediction), axis=-1))

    def try_in_parts(*_: Any) -> Verdict:
        raise AssertionError

    monkeypatch.setattr(job, "try_in_parts", try_in_parts)
    plan = levers(model, 32, 16)
    assert Tightening(model, Fidelity.EXACT, plan).tighter(plan.recipe, DATA, None, None) == (Recipe(8), "")
    near = Tightening(model, Fidelity.NEAR, replace(plan, fidelity=Fidelity.NEAR))
    now, remark = plan.recipe, ""
    while not remark:
        found = near.tighter(now, DATA, None, None)
        assert found is not None
        now, remark = found
    assert now.micro_batch == 8
    assert remark == " (near, not exact: as planned)"


@pytest.mark.parametrize(("need", "free", "size"), [(100, 95, 16), (100, 40, 11), (100, 2, 1)])
def test_what_is_known_of_the_shortage_decides_how_small(need: int, free: int, size: int) -> None:
    found = Tightening(network(False), Fidelity.EXACT).tighter(Recipe(), DATA, need, free)
    assert found == (Recipe(size), "")


def test_a_batch_that_runs_out_again_and_again_is_cut_ever_faster() -> None:
    tightening, recipe, sizes = Tightening(network(False), Fidelity.EXACT), Recipe(), []
    for before in range(3):  # each costs TensorFlow's 10 s
        recipe, _ = tightening.tighter(recipe, DATA, None, None, before) or (recipe, "")
        sizes.append(recipe.micro_batch)
    assert sizes == [16, 4, 1]


def test_the_end_says_what_would_help() -> None:
    text = Tightening(network(True), Fidelity.EXACT).say_what_would_help(
        Recipe(), "failed to allocate 5 MiB", 2**20, 2**19
    )
    assert "1.0 MiB" in text
    assert 'allow="near"' in text


class OnceHungry(layers.Layer):
    def call(self, x: Any) -> Any:
        return eat("once", x)


class HungryInBatch2(keras.callbacks.Callback):
    """Lets memory run out once, in the second batch, and notes the bytes in use after each."""

    def __init__(self) -> None:
        super().__init__()
        self.in_use: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        appetite("once").assign(5 * 2**18 if batch == 1 else 0)  # 8 samples want 40 MiB, and 4 want 20

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.in_use.append(tf.config.experimental.get_memory_info("CPU:0")["current"])


def _in_use_around_a_shortage() -> list[int]:
    model = keras.Sequential([keras.Input((512,)), OnceHungry(), layers.Dense(2048), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    x, y = np.zeros((48, 512), "float32"), np.zeros((48, 1), "float32")
    watch = HungryInBatch2()
    plan = levers(model, 16, 8)
    run = memfit.fit(model, x, y, batch_size=16, verbose=0, plan=plan, callbacks=[watch]).memory
    assert run.events[-1].done.endswith("micro-batches of 4")
    return watch.in_use


def test_smaller_micro_batches_leave_nothing_of_the_larger_ones_in_memory() -> None:
    before, *after = in_arena(_in_use_around_a_shortage, memory="48MiB")
    assert max(after) - before < 2**20  # gradients take 4 MiB


def test_an_update_that_does_not_fit_is_explained_by_what_the_optimizer_keeps() -> None:
    words = keras.layers.Embedding(4096, 128, name="words")
    model = keras.Sequential([keras.Input((8,), dtype="int32"), words, keras.layers.Flatten()])
    model.compile("adam", "mse")
    text = Tightening(model, Fidelity.EXACT).say_what_helps_an_update()
    path = words.embeddings.path
    assert f"Adam keeps 4.0 MiB beside 2.0 MiB of trained weights (2.0 MiB in `{path}`)" in text
    assert "No batch size changes that." in text
    assert '8-bit moments, with a plan that allows "precision"' in text
    assert "Rows of embeddings (-4.0 MiB)" in text
    assert f"A smaller `{path}`" in text
