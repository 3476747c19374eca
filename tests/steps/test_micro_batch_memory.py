"""In the arena: a step in micro-batches takes the memory of a micro-batch and of one copy of the gradients."""

from typing import Any

import pytest

from prepared import in_arena

BATCH, PART = 64, 8


def peaks() -> dict[str, Any]:
    """Measures steps of one model in three ways, in one process, in MiB."""
    import keras
    import tensorflow as tf
    from keras import layers

    from memfit.compat import keras_layers
    from memfit.steps.micro_batches.step import micro_batched_test_step, micro_batched_train_step

    tf.config.threading.set_inter_op_parallelism_threads(
        1
    )  # peaks repeat within 4%; with threads they differ by up to 20%
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((1024, 4)),
            *[layers.Conv1D(32, 3, padding="same", activation="tanh") for _ in range(8)],
            layers.GlobalAveragePooling1D(),
            layers.Dense(2048, activation="tanh"),
            layers.Dense(2048, activation="tanh"),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.01), "mse")
    memory = tf.config.experimental

    def peak(function: Any, samples: int) -> float:
        data = (tf.random.normal((samples, 1024, 4)), tf.zeros((samples, 1)))
        function(iter([data]))
        memory.reset_memory_stats("CPU:0")
        function(iter([data]))
        return float(memory.get_memory_info("CPU:0")["peak"]) / 2**20

    def train(samples: int) -> float:
        model.make_train_function(force=True)
        return peak(model.train_function, samples)

    def test(samples: int) -> float:
        model.make_test_function(force=True)
        return peak(model.test_function, samples)

    found = {"batch": train(BATCH), "small batch": train(PART), "test batch": test(BATCH)}
    model.train_step = micro_batched_train_step(
        model, PART, lambda x: keras_layers.forward(model, x, training=True)
    )
    model.test_step = micro_batched_test_step(model, PART)
    found["test parts"] = test(BATCH)
    found["parts"] = train(BATCH)
    found["weights"] = sum(float(w.numpy().nbytes) for w in model.trainable_weights) / 2**20
    found["input"] = BATCH * 1024 * 4 * 4 / 2**20
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    return in_arena(peaks, memory="2GiB")


def test_a_step_takes_a_part_s_memory_and_one_copy_of_the_gradients(found: dict[str, float]) -> None:
    allowed = found["small batch"] + found["weights"] + found["input"]
    assert found["parts"] <= 1.1 * allowed, found
    assert found["parts"] < 0.6 * found["batch"], found


def test_evaluation_in_parts_takes_a_part_s_memory(found: dict[str, float]) -> None:
    assert found["test parts"] - found["weights"] < 0.6 * (found["test batch"] - found["weights"]), found
