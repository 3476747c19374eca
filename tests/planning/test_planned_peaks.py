"""A planned step is recorded as the guard runs it: the state made first, gradients kept until the update."""

from functools import partial

import keras
import numpy as np
import pytest
from keras import layers

from memfit.estimation.recorder import Recorder
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import find_choices
from memfit.steps.train_step import build
from prepared import in_arena

MIB = 2**20
PART = 16


def dense() -> keras.Model:
    """Some 12 MiB of weights, whose gradients are much of what a step takes."""
    keras.backend.clear_session()  # layers of the same names every time
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            *[layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(4)],
            layers.MaxPooling2D(4),
            layers.Flatten(),
            layers.Dense(1536, activation="relu"),
            layers.Dense(1024, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", jit_compile=False)
    return model


def predicted(recipe: Recipe, batch: int) -> int:
    with Recorder(dense(), None, None) as recorder:
        return int(recorder.estimate(batch, partial(build, recipe=recipe, parts=2)).peak)


def measured(recipe: Recipe, batch: int) -> int:
    """The peak of the guarded training, without its inputs; runs in an arena."""
    import memfit
    from training.parity import levers

    model = dense()
    x, y = np.ones((2 * batch, 32, 32, 3), "float32"), np.ones((2 * batch, 1), "float32")
    plan = levers(model, batch, recipe.micro_batch, segments=recipe.segments, inputs_on_host=True)
    run = memfit.fit(model, x, y, batch_size=batch, epochs=3, verbose=0, plan=plan).memory
    assert run.measured is not None
    return int(run.measured)


@pytest.mark.parametrize("kind", ["parts", "segments"])
def test_the_recorded_peak_is_that_of_the_guarded_training(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With several threads this training peaks at 90 MiB in one process and at 116 in the next.
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    parts = kind == "parts"
    recipe = Recipe(PART) if parts else Recipe(segments=find_choices(dense(), PART)[-1])
    batch = 2 * PART if parts else PART
    ours, real = predicted(recipe, batch), in_arena(measured, recipe, batch, memory="1GiB")
    assert ours == pytest.approx(real, rel=0.02)


def words() -> keras.Model:
    """Next to no weights: what a step takes are the rows of the embedding's gradient, 32 KiB a sample."""
    keras.backend.clear_session()
    model = keras.Sequential(
        [
            keras.Input((32,), dtype="int32"),
            layers.Embedding(500, 256),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", jit_compile=False)
    return model


def measured_words(batch: int) -> int:
    """The peak of the guarded training, in many micro-batches; runs in an arena."""
    import memfit
    from training.parity import levers

    model = words()
    x = np.random.default_rng(0).integers(0, 500, (2 * batch, 32)).astype("int32")
    plan = levers(model, batch, PART, inputs_on_host=True)
    y = np.ones((2 * batch, 1), "float32")
    run = memfit.fit(model, x, y, batch_size=batch, epochs=2, verbose=0, plan=plan).memory
    assert run.measured is not None
    return int(run.measured)


def test_rows_of_all_micro_batches_wait_for_the_update() -> None:
    """A step is recorded with two micro-batches, and the update has the rows of all of them."""
    batch = 16 * PART
    example = np.full((4, 32), 499, "int32"), np.ones((4, 1), "float32")
    with Recorder(words(), example, None) as recorder:
        recorded = recorder.estimate(2 * PART, partial(build, recipe=Recipe(PART), parts=2))
    real = in_arena(measured_words, batch, memory="1GiB")
    assert int(recorded.peak) < real / 2
    assert int(recorded.within(batch).peak) == pytest.approx(real, rel=0.15)


def heavy() -> keras.Model:
    """Next to no activations: what a step takes is weights, their gradients and their update."""
    keras.backend.clear_session()
    hidden = [layers.Dense(768, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((256,)), *hidden, layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", jit_compile=False)
    return model


def smallest_memory() -> int:
    import memfit

    with pytest.raises(memfit.DoesNotFit) as refusal:
        memfit.plan(heavy(), 16, 20 * MIB, "exact")
    return int(refusal.value.smallest_memory)


def train_in(memory: int) -> int:
    """Plans and trains in an arena; returns how often memory ran out."""
    import memfit

    model, x = heavy(), np.ones((48, 256), "float32")
    plan = memfit.plan(model, 16, memory, "exact")
    run = memfit.fit(model, x, np.ones((48, 1), "float32"), batch_size=16, verbose=0, plan=plan).memory
    return len(run.events)


def test_an_update_from_all_gradients_at_once_is_planned_for() -> None:
    """Stock Keras may apply each gradient at once; a step that can be undone applies them all at the end."""
    memory = smallest_memory()
    assert in_arena(train_in, memory + 2 * MIB, memory=memory + 2 * MIB) == 0
