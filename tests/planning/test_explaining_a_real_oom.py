from typing import Any

from memfit import isolated


def _run_out() -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    from memfit import explain

    blocks = [
        keras.layers.Conv2D(32, 3, padding="same", activation="relu", name=f"conv_{n}") for n in range(6)
    ]
    model = keras.Sequential([keras.Input((128, 128, 3)), *blocks, keras.layers.GlobalAveragePooling2D()])
    model.compile("sgd", "mse")
    try:
        model.fit(np.zeros((32, 128, 128, 3), "float32"), np.zeros((32, 32), "float32"), verbose=0)
    except tf.errors.ResourceExhaustedError as error:
        return explain(error, batch_size=32).to_json()
    raise AssertionError("six activations of 64 MiB each do not fit into 300 MiB")


def test_the_exception_itself_tells_layer_tensor_and_phase() -> None:
    told = isolated(_run_out, memory="300MiB")
    assert (told["ran_out"], told["device"]) == ("device", "arena")
    assert told["asked"]["layer"].startswith("conv_")
    assert told["asked"]["phase"] == "forward"
    assert told["asked"]["shape"] == (32, 128, 128, 32)
    assert told["requested"] == 64 * 2**20
    assert told["changes"][2]["do"] == "model.fit(..., batch_size=16)"
