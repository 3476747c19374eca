"""What the processes of `run.py` do: exact trainings, timed steps, memory beside the gradients."""

import time
from statistics import median
from typing import Any

from machine import SMOKE
from scale.cases import CASES, train

STEPS = 2 if SMOKE else 21
WIDE = 64 if SMOKE else 1024


def train_by_keras(names: list[str], replicas: int) -> dict[str, Any]:
    """Trains with stock Keras, on one device or under `MirroredStrategy` on several logical CPUs."""
    import keras
    import tensorflow as tf

    if replicas > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    found: dict[str, Any] = {}
    for name in names:
        try:
            if replicas == 1:
                found[name] = plain(train(CASES[name], keras.Model.fit))
            else:
                devices = [f"CPU:{number}" for number in range(replicas)]
                with tf.distribute.MirroredStrategy(devices).scope():
                    found[name] = plain(train(CASES[name], keras.Model.fit))
        except Exception as error:  # what stock cannot do is a result
            found[name] = f"{type(error).__name__}"
    return found


def train_by_memfit(names: list[str]) -> dict[str, Any]:
    """Trains with memfit, on as many ranks as there are."""
    import memfit

    return {name: plain(train(CASES[name], memfit.fit)) for name in names}


def plain(result: dict[str, Any]) -> dict[str, Any]:
    """What can be sent: variables and logs."""
    states = result["states"]
    return {"states": states, "logs": result["logs"]}


def _network() -> tuple[Any, Any, Any]:
    """Some 400,000 weights on images of 64 x 64, batches of 32."""
    import keras
    import numpy as np
    from keras import layers

    keras.utils.set_random_seed(0)
    body = [layers.Conv2D(16, 3, 2, activation="relu"), layers.Conv2D(32, 3, 2, activation="relu")]
    model = keras.Sequential(
        [keras.Input((64, 64, 3)), *body, layers.Flatten(), layers.Dense(48), layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(32 * 8, 64, 64, 3)).astype("float32")
    return model, x, x[:, 0, 0, :1]


def time_by_memfit() -> float:
    """Returns the median seconds of a step on a rank."""
    import memfit

    model, x, y = _network()
    return _time(lambda **more: memfit.fit(model, x, y, batch_size=32, shuffle=False, verbose=0, **more))


def time_by_patched_keras() -> float:
    """Returns the same of Keras under `MultiWorkerMirroredStrategy`, mended so that it runs."""
    import tensorflow as tf

    from scale.patched_keras import patch

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    patch()
    with strategy.scope():
        model, x, y = _network()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    return _time(lambda **more: model.fit(data, verbose=0, **more))


def _time(fit: Any) -> float:
    import keras

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.steps: list[float] = []
            self._last = 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            now = time.perf_counter()
            if batch:
                self.steps.append(now - self._last)
            self._last = now

    fit(epochs=1)  # traces
    clock = Clock()
    fit(epochs=-(-STEPS // 7), callbacks=[clock])
    return median(clock.steps)


def train_sharded(sharded: bool) -> dict[str, float]:
    """Returns the MiB of Adam's moments on this rank while it trains, and the median seconds of a step."""
    from dataclasses import replace

    import keras
    import numpy as np
    import tensorflow as tf

    import memfit
    from memfit.scaling.communicator import join_cluster
    from memfit.steps.recipe import Recipe
    from memfit.steps.sharded_state import ShardedState

    keras.utils.set_random_seed(0)
    wide = 16 if SMOKE else 768
    model = keras.Sequential([keras.Input((wide,)), *(keras.layers.Dense(wide) for _ in range(6))])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(32 * 8, wide)).astype("float32")
    cluster = join_cluster()
    ranks = 1 if cluster is None else cluster.count
    plan = memfit.plan(model, 32, "4GiB", "exact", ranks=ranks)
    if sharded and ranks > 1:
        plan = replace(plan, recipe=Recipe(changes=(ShardedState(ranks),)))
    kept: list[float] = []

    def count(batch: int, logs: Any) -> None:
        kept.append(sum(int(tf.size(each.value)) for each in model.optimizer.variables) * 4 / 2**20)

    counting = keras.callbacks.LambdaCallback(on_train_batch_end=count)

    def fit(callbacks: Any = (), **more: Any) -> None:
        memfit.fit(model, x, x, batch_size=32, plan=plan, verbose=0, callbacks=[*callbacks, counting], **more)

    return {"seconds": _time(fit), "state": kept[-1]}


def memory_beside_gradients() -> dict[str, float]:
    """Returns the MiB of all gradients, and what the arena's peak has more while they are added up."""
    import tensorflow as tf

    from memfit.scaling.communicator import join_cluster
    from memfit.steps.gradients import GradientShelf
    from memfit.steps.share import Communicator

    ranks: Communicator | None = join_cluster()
    if ranks is None:
        return {"gradients": 0.0, "beside": 0.0}
    import keras

    weights = [keras.Variable(tf.ones([WIDE, WIDE]), trainable=True) for _ in range(24)]
    shelf = GradientShelf()
    put = tf.function(lambda: shelf.put([2.0 * weight.value for weight in weights], weights), autograph=False)
    add_up = tf.function(lambda: shelf.sum_over(ranks), autograph=False)
    put()
    add_up()
    put()
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    add_up()
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    return {"gradients": 24 * WIDE * WIDE * 4 / 2**20, "beside": (peak - before) / 2**20}
