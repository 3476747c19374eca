"""In the arena: rematerialised steps take the memory they were chosen for, in a graph and with XLA."""

from typing import Any

import pytest

from prepared import in_arena


def pick(model: Any, batch: int, part: float, compiled: bool = False) -> Any:
    """The fastest choice that takes at most a part of stock's activations."""
    from memfit.steps.rematerialisation import find_choices

    choices = find_choices(model, batch, compiled=compiled)
    return next(choice for choice in choices if choice.activation_bytes <= part * choice.stock_bytes)


def peaks() -> dict[str, float]:
    """Measures steps of one model, stock and rematerialised, in MiB above what is in use between steps."""
    import keras
    import tensorflow as tf
    from keras import layers

    from memfit.steps.rematerialisation import rematerialise

    x = image = keras.Input((64, 64, 3))
    for _ in range(10):
        x = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
        x = layers.Activation("relu")(layers.BatchNormalization()(x))
    model = keras.Model(image, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))
    segments = pick(model, 32, 0.35)
    images = tf.random.normal((32, 64, 64, 3))
    memory = tf.config.experimental

    def peak(call: Any, jit: bool) -> float:
        @tf.function(jit_compile=jit)
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(call(images, training=True) ** 2)
            found = tape.gradient(loss, model.trainable_variables)
            for weight, gradient in zip(model.trainable_variables, found, strict=True):
                weight.value.assign_sub(1e-3 * gradient)
            return loss

        step()
        memory.reset_memory_stats("CPU:0")
        rest = memory.get_memory_info("CPU:0")["current"]
        step()
        return (memory.get_memory_info("CPU:0")["peak"] - rest) / 2**20

    ours = rematerialise(model, segments)
    with_xla = rematerialise(model, pick(model, 32, 0.35, compiled=True))
    found = {"stock": peak(model, False), "ours": peak(ours, False)}
    found |= {"stock with XLA": peak(model, True), "ours with XLA": peak(with_xla, True)}
    return found | {
        "predicted": segments.activation_bytes / 2**20,
        "stock predicted": segments.stock_bytes / 2**20,
    }


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    return in_arena(peaks, memory="2GiB")


def test_activation_memory_is_divided_as_chosen(measured: dict[str, float]) -> None:
    assert measured["ours"] < 0.45 * measured["stock"], measured


def test_activation_memory_falls_with_xla_too(measured: dict[str, float]) -> None:
    assert measured["ours with XLA"] < 0.75 * measured["stock with XLA"], measured


def test_the_prediction_is_near_what_is_measured(measured: dict[str, float]) -> None:
    assert measured["predicted"] == pytest.approx(measured["ours"], rel=0.3), measured
    assert measured["stock predicted"] == pytest.approx(measured["stock"], rel=0.3), measured


def peak_with_unknown_batch() -> float:
    """Measures a rematerialised step that, as in `fit`, does not know its batch; skips and normalisations."""
    import keras
    import tensorflow as tf
    from keras import layers

    from memfit.steps.rematerialisation import rematerialise

    image = keras.Input((64, 64, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(image)
    for _ in range(4):
        skip = layers.Conv2D(8, 1, use_bias=False)(x)
        x = layers.Conv2D(8, 3, padding="same", use_bias=False)(layers.ReLU()(layers.BatchNormalization()(x)))
        x = layers.Add()([skip, x])
    model = keras.Model(image, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))
    call = rematerialise(model, pick(model, 64, 0.5))

    @tf.function(input_signature=[tf.TensorSpec((None, 64, 64, 3))])
    def step(images: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(call(images, training=True) ** 2)
        found = tape.gradient(loss, model.trainable_variables)
        for weight, gradient in zip(model.trainable_variables, found, strict=True):
            weight.value.assign_sub(1e-3 * gradient)
        return loss

    images = tf.random.normal((64, 64, 64, 3))
    step(images)
    memory = tf.config.experimental
    peaks = []
    for _ in range(3):
        memory.reset_memory_stats("CPU:0")
        rest = memory.get_memory_info("CPU:0")["current"]
        step(images)
        peaks.append((memory.get_memory_info("CPU:0")["peak"] - rest) / 2**20)
    return sorted(peaks)[1]


def test_a_step_takes_no_more_where_memory_is_short_and_the_batch_unknown() -> None:
    roomy = in_arena(peak_with_unknown_batch, memory="2GiB")
    tight = in_arena(peak_with_unknown_batch, memory=int(1.6 * 2**20 * roomy))
    assert tight < 1.15 * roomy, (tight, roomy)
