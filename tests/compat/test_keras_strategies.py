"""Canaries of what memfit mends in Keras under distribution strategies."""

import keras
import numpy as np
import tensorflow as tf

from compat.canaries import canary
from memfit.compat import keras_strategies
from prepared import run_forked


def _train_on_two_devices() -> tuple[bool, bool]:
    """Trains with a batch that does not divide, under MirroredStrategy: stock fails before the first step."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((30, 3)), np.ones((30, 1))
    try:
        model.fit(x, y, batch_size=15, verbose=0)
        stock = True
    except Exception:
        stock = False
    with keras_strategies.mended():
        history = model.fit(x, y, batch_size=15, verbose=0)
    return stock, bool(np.isfinite(history.history["loss"][0]))


@canary(
    "keras_strategies.mended",
    "TensorFlowTrainer._maybe_symbolic_build",
    "trainer._collective_all_reduce_multi_worker",
    "trainer.reduce_per_replica",
    of="keras",
)
def test_mended_keras_trains_batches_that_do_not_divide() -> None:
    stock, mended = run_forked(_train_on_two_devices, TF_ENABLE_ONEDNN_OPTS="0")
    assert mended
    assert not stock  # Keras has mended it itself: then this wrapper can go
