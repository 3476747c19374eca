"""Rematerialised steps unfold volumes some channels at a time: far less memory, and the same gradients."""

from typing import Any

from prepared import in_arena


def measure() -> dict[str, Any]:
    """Peaks (MiB) of a step's gradients, stock and rematerialised, and how far the gradients are apart."""
    import keras
    import numpy as np
    import tensorflow as tf

    from memfit.steps.rematerialisation import find_choices, rematerialise, run_one_by_one

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    layers, side = keras.layers, 32
    inputs = keras.Input((side, side, side, 2))
    x = skip = layers.Conv3D(6, 3, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.ReLU()(layers.Conv3D(8, 3, strides=2, padding="same")(x))
    x = layers.Concatenate()([layers.Conv3DTranspose(6, 2, strides=2)(x), skip])
    x = layers.ReLU()(layers.Conv3D(4, 3, padding="same")(x))
    model = keras.Model(inputs, layers.Conv3D(1, 1)(x))
    volume = tf.constant(np.random.default_rng(0).normal(size=(1, side, side, side, 2)))

    def differentiate(call: Any) -> tuple[list[Any], float]:
        @tf.function(
            autograph=False, input_signature=[tf.TensorSpec((None, side, side, side, 2), tf.float64)]
        )
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(call(x, training=True) ** 2)
            return tape.gradient(loss, model.trainable_variables)

        with run_one_by_one():
            found = [gradient.numpy() for gradient in step(volume)]
            tf.config.experimental.reset_memory_stats("CPU:0")
            step(volume)
        return found, tf.config.experimental.get_memory_info("CPU:0")["peak"] / 2**20

    stock, most = differentiate(model)
    ours, least = differentiate(rematerialise(model, find_choices(model, 1)[-1]))
    pairs = zip(stock, ours, strict=True)
    return {"stock": most, "ours": least, "apart": max(abs(a - b).max() / abs(a).max() for a, b in pairs)}


def test_gradients_of_3d_convolutions_take_a_part_of_the_workspace_and_are_the_same() -> None:
    found = in_arena(measure, memory="1GiB")
    assert found["apart"] < 1e-12
    assert found["ours"] < 0.4 * found["stock"]
