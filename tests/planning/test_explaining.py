import re
from typing import Any

import pytest

from prepared import in_arena


def _run_out() -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    from memfit import explain

    outputs = inputs = keras.Input((64, 64, 3))
    for number in range(6):
        outputs = keras.layers.Conv2D(32, 1, activation="relu", name=f"conv_{number}")(outputs)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(outputs))
    model.compile("sgd", "mse")
    try:
        model.fit(np.zeros((32, 64, 64, 3), "float32"), np.zeros((32, 32), "float32"), verbose=0)
    except tf.errors.ResourceExhaustedError as error:
        model.compile("sgd", "mse")
        told = explain(error, model, batch_size=32).to_json()
        uncompiled = keras.Model(model.inputs, model.outputs)
        return {**told, "uncompiled": explain(error, uncompiled, batch_size=32).to_json()["changes"][2]}
    raise AssertionError("six activations of 16 MiB each do not fit into 75 MiB")


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return in_arena(_run_out, memory="75MiB")


def test_the_exception_itself_tells_layer_tensor_and_phase(told: dict[str, Any]) -> None:
    assert (told["ran_out"], told["device"]) == ("device", "arena")
    assert told["asked"]["layer"].startswith("conv_")
    assert told["asked"]["phase"] == "forward"
    assert told["asked"]["shape"] == [32, 64, 64, 32]
    assert told["requested"] == 16 * 2**20
    assert told["limit"] == 75 * 2**20, "the process knows its arena, though the text does not name it"


def test_a_model_at_hand_gives_predicted_effects(told: dict[str, Any]) -> None:
    fit, precision, batch = told["changes"]
    assert fit["do"] == 'memfit.fit(model, ..., memory="75MiB")'
    assert re.fullmatch(r"[\d.]+ [GM]iB becomes \d+ MiB at \d\.\d\dx the time \(predicted\)", fit["effect"])
    assert precision["effect"] == ""
    largest = int(re.fullmatch(r"model\.fit\(\.\.\., batch_size=(\d+)\)", batch["do"])[1])  # type: ignore[index]
    # Six activations of half a MiB a sample, and at least two more in the backward pass.
    assert 8 <= largest <= 20
    assert batch["effect"].endswith("(predicted)")


def test_a_model_that_cannot_be_recorded_does_not_spoil_the_explanation(told: dict[str, Any]) -> None:
    assert told["uncompiled"]["do"] == "model.fit(..., batch_size=16)"
    assert told["uncompiled"]["effect"].startswith("not predicted: A model must be compiled")
