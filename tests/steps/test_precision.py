"""A float32 model lowered for a while against one that was built under Keras's own mixed policy."""

from typing import Any

import keras
import numpy as np
import pytest

from memfit import InvalidInput
from memfit.steps.precision import lower

X = np.random.default_rng(0).normal(size=(32, 8, 8, 3)).astype("float32")
Y = np.random.default_rng(1).integers(0, 4, size=(32,))


def _model(policy: str) -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(8, 3, dtype=policy)(inputs)
    x = keras.layers.BatchNormalization(dtype=policy)(x)
    block = keras.Sequential(
        [keras.layers.ReLU(dtype=policy), keras.layers.Dropout(0.3, seed=5, dtype=policy)], name="block"
    )
    x = keras.layers.GlobalAveragePooling2D(dtype=policy)(block(x))
    outputs = keras.layers.Dense(4, activation="softmax", dtype="float32")(x)
    model = keras.Model(inputs, outputs)
    optimizer: Any = keras.optimizers.Adam(0.01)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _fit(model: keras.Model) -> list[float]:
    losses: list[float] = model.fit(X, Y, batch_size=8, epochs=5, shuffle=False, verbose=0).history["loss"]
    return losses


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_twenty_steps_equal_those_of_a_model_built_in_mixed_precision(policy: str) -> None:
    mixed = _model(policy)
    expected = _fit(mixed)
    model = _model("float32")
    with lower(model, policy):
        assert _fit(model) == expected
    for got, wanted in zip(model.get_weights(), mixed.get_weights(), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_afterwards_the_model_is_float32_again_and_keeps_its_optimizer() -> None:
    model, twin = _model("float32"), _model("float32")
    optimizer = model.optimizer
    with lower(model, "mixed_float16"):
        model.optimizer.build(model.trainable_variables)
    assert model.optimizer is optimizer
    assert {layer.dtype_policy.name for layer in model.layers} == {"float32"}
    assert _fit(model) == _fit(twin)


def test_it_is_undone_after_an_error() -> None:
    model = _model("float32")
    with pytest.raises(ZeroDivisionError), lower(model, "mixed_bfloat16"):
        raise ZeroDivisionError
    assert model.layers[1].dtype_policy.name == "float32"


def test_a_model_that_is_mixed_already_and_an_unknown_policy_are_refused_unchanged() -> None:
    model = _model("mixed_bfloat16")
    with pytest.raises(InvalidInput, match="computes in float32"), lower(model, "mixed_bfloat16"):
        pass
    with pytest.raises(InvalidInput, match="one of mixed_bfloat16"), lower(model, "int8"):
        pass
