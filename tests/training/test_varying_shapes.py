"""Where shapes vary, only batches that need it are computed in a tighter recipe; results are stock Keras's."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import memfit
import prepared
from memfit.data.shapes import shape_of

L = keras.layers
BATCHES, OUTLIER = 30, 17


def _text() -> keras.Model:
    x = inputs = keras.Input((None,), dtype="int32")
    x = L.Embedding(50, 16, mask_zero=True)(x)
    x = L.Dense(64, activation="tanh")(x)
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(x)))


def _images() -> keras.Model:
    x = inputs = keras.Input((None, None, 3))
    for _ in range(2):
        x = L.Conv2D(16, 1)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
    return keras.Model(inputs, L.Conv2D(1, 1)(x))


def _bucketed() -> tf.data.Dataset:
    """Texts of 20 to 49 tokens, padded, and one of 3,000."""

    def text(number: Any) -> Any:
        length = tf.where(number == OUTLIER, 3000, 20 + tf.cast(number * 7 % 30, tf.int32))
        tokens = tf.random.stateless_uniform([8, length], tf.stack([number, number]), 0, 50, tf.int32)
        tokens = tf.where(tf.range(length) < length - 3, tokens, 0)
        return tokens, tf.cast(tf.reduce_sum(tokens, 1, keepdims=True), tf.float64) / 1e4

    return tf.data.Dataset.range(BATCHES).map(text)


def _generate_images() -> Any:
    """Images of several sizes, and one that is far larger than the others, in a generator that gives each once."""
    random = np.random.default_rng(0)
    for number in range(BATCHES):
        height, width = (256, 200) if number == OUTLIER else (16 + 8 * (number % 3), 16 + 8 * (number % 4))
        x = random.random((4, height, width, 3))
        yield x, x.mean(-1, keepdims=True)


def _train(kind: str, memory: str | None, stock: bool) -> Any:
    """Trains an epoch in float64; returns losses, weights, the peak, and what memfit said and did."""
    from memfit.training.guard.replaying import Replaying

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    model = _text() if kind == "text" else _images()
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    data = _bucketed() if kind == "text" else _generate_images()
    recipes: list[tuple[int, str]] = []
    compute = Replaying.compute

    def watched(replaying: Replaying, data: Any, *more: Any) -> Any:
        result = compute(replaying, data, *more)
        recipes.append((shape_of(data)[0][1], str(replaying.recipe)))
        return result

    Replaying.compute = watched
    try:
        options: dict[str, Any] = {} if stock else {"memory": memory, "allow": "exact"}
        train = model.fit if stock else lambda *args, **kwargs: memfit.fit(model, *args, **kwargs)
        history = train(data, shuffle=False, verbose=0, **options)
    except tf.errors.ResourceExhaustedError:
        return "out of memory"
    run = None if stock else history.memory
    return {
        "loss": history.history["loss"],
        "weights": [variable.numpy() for variable in model.variables],
        "plan": None if run is None or run.plan is None else run.plan.to_json(),
        "events": [] if run is None else [event.to_json() for event in run.events],
        "recipes": recipes,
    }


def _assert_same(ours: Any, stock: Any) -> None:
    np.testing.assert_allclose(ours["loss"], stock["loss"], rtol=1e-12)
    for mine, theirs in zip(ours["weights"], stock["weights"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)


def test_only_the_longest_text_is_computed_in_the_plan_s_tighter_recipe() -> None:
    stock = prepared.in_arena(_train, "text", None, True, memory="1GiB")
    assert prepared.in_arena(_train, "text", None, True, memory="24MiB") == "out of memory"
    ours = prepared.in_arena(_train, "text", "22MiB", False, memory="24MiB")
    _assert_same(ours, stock)
    plan = memfit.Plan.from_json(ours["plan"])
    assert plan.worst is not None
    assert plan.ordinary is not None
    assert (plan.worst.index, plan.worst.shape, plan.worst.total) == (OUTLIER, ((8, 3000), (8, 1)), BATCHES)
    assert plan.ordinary.recipe.is_stock
    assert not plan.recipe.is_stock
    assert "worst batch    17 of 30" in repr(plan)
    for length, recipe in ours["recipes"]:
        assert recipe == (str(plan.recipe) if length == 3000 else "whole batches")
    assert len(ours["recipes"]) == BATCHES
    assert not ours["events"]  # no batch ran out of memory


def test_an_image_that_no_look_could_find_is_computed_tighter_and_the_others_are_not() -> None:
    stock = prepared.in_arena(_train, "images", None, True, memory="1GiB")
    ours = prepared.in_arena(_train, "images", None, False, memory="130MiB")
    _assert_same(ours, stock)
    tight = [height for height, recipe in ours["recipes"] if "rematerialised" in recipe]
    assert tight == [256]
    assert len(ours["recipes"]) == BATCHES
    says = [event["says"] for event in ours["events"]]
    assert says[0] == "Planned for batches like the first one: a generator yields each batch only once."
    assert "as are others of more than" in says[-1]
