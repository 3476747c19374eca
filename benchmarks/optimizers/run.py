"""Optimizers that keep less: state, time of a step, final losses, and whether Adafactor's bits are Keras's.

State is counted from the optimizers' variables. Times are ratios of steps that alternate in one process. Losses are
those of three small tasks after the same epochs, over five seeds.
"""

import sys
import time
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import SMOKE, isolated, write

SEEDS = range(2 if SMOKE else 5)
EPOCHS = 1 if SMOKE else 12
STEPS = 1 if SMOKE else 6
LICENSE = Path(__file__).parents[2] / "LICENSE"


def make(name: str, rate: float = 1e-3) -> Any:
    """Makes an optimizer by its name."""
    import keras

    import memfit

    place = memfit.optimizers if name in ("Adam8bit",) else keras.optimizers
    return getattr(place, name)(rate)


def digits_mlp() -> tuple[Any, Any, Any]:
    """Scikit-learn's digits, by a network of dense layers."""
    import keras
    from keras import layers
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    body = [layers.Dense(256, "relu"), layers.Dense(128, "relu"), layers.Dense(10)]
    return keras.Sequential([keras.Input((64,)), *body]), x.astype("float32") / 16, y


def digits_cnn() -> tuple[Any, Any, Any]:
    """The same digits, by convolutions."""
    import keras
    from keras import layers

    _, x, y = digits_mlp()
    body = [
        layers.Conv2D(32, 3, padding="same"),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dense(64, "relu"),
        layers.Dense(10),
    ]
    return keras.Sequential([keras.Input((8, 8, 1)), *body]), x.reshape(-1, 8, 8, 1), y


def next_letter() -> tuple[Any, Any, Any]:
    """The next letter of memfit's licence, by a recurrent network."""
    import keras
    import numpy as np
    from keras import layers

    text = LICENSE.read_text().lower()
    letters = sorted(set(text))
    codes = np.array([letters.index(letter) for letter in text], "int32")
    windows = np.lib.stride_tricks.sliding_window_view(codes, 17)[::4]
    body = [layers.Embedding(len(letters), 96), layers.GRU(96), layers.Dense(len(letters))]
    return keras.Sequential([keras.Input((16,), dtype="int32"), *body]), windows[:, :16], windows[:, 16]


TASKS = {"digits, dense": digits_mlp, "digits, convolutions": digits_cnn, "letters, GRU": next_letter}


def final_losses(task: str, optimizer: str) -> list[tuple[float, float]]:
    """Trains a task with every seed; returns the losses on what was trained with, and on what was not."""
    import keras

    losses = []
    for seed in SEEDS:
        keras.utils.set_random_seed(seed)
        model, x, y = TASKS[task]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(make(optimizer), loss, jit_compile=False)
        history = model.fit(
            x, y, batch_size=64, epochs=EPOCHS, validation_split=0.2, verbose=0, shuffle=True
        ).history
        losses.append((history["loss"][-1], history["val_loss"][-1]))
    return losses


def network() -> Any:
    """A network of which computing takes most of a step."""
    import keras

    if SMOKE:
        return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Conv2D(8, 3), keras.layers.Flatten()])
    return keras.applications.MobileNet(weights=None, classifier_activation=None)


def updating(model: Any, gradients: list[Any]) -> Any:
    """Returns the traced update of a model's weights from the same gradients again and again."""
    import tensorflow as tf

    return tf.function(lambda: model.optimizer.apply(gradients, model.trainable_variables), autograph=False)


def step_times() -> dict[str, Any]:
    """Times whole steps and bare updates of both optimizers, one after the other, again and again."""
    import keras
    import numpy as np
    import tensorflow as tf

    random, names = np.random.default_rng(0), ("Adam", "Adam8bit")
    models, updates = {}, {}
    for name in names:
        model = network()
        model.compile(make(name), keras.losses.MeanSquaredError(), jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        gradients = [tf.constant(random.normal(size=v.shape), tf.float32) for v in model.trainable_variables]
        updates[name] = updating(model, gradients)
        models[name] = model
    x = tf.constant(random.random((32, *models["Adam"].input_shape[1:])), tf.float32)
    y = tf.zeros_like(models["Adam"](x[:1]))
    y = tf.repeat(y, 32, axis=0)
    steps = {name: (lambda m=model: m.train_on_batch(x, y)) for name, model in models.items()}
    seconds: dict[str, dict[str, list[float]]] = {"step": {}, "update": {}, "step cpu": {}, "update cpu": {}}
    for kind, functions in (("step", steps), ("update", updates)):
        for function in functions.values():
            function()
        for _ in range(STEPS):
            for name, function in functions.items():
                begin, cpu = time.perf_counter(), time.process_time()
                function()
                seconds[kind].setdefault(name, []).append(time.perf_counter() - begin)
                seconds[f"{kind} cpu"].setdefault(name, []).append(time.process_time() - cpu)
    return {
        "batch": 32,
        "parameters": sum(int(np.prod(v.shape)) for v in models["Adam"].trainable_variables),
        "step_ratio": median(b / a for a, b in zip(*seconds["step"].values(), strict=True)),
        "step_ratio_of_fastest": min(seconds["step"]["Adam8bit"]) / min(seconds["step"]["Adam"]),
        "step_ratio_of_processor_time": median(
            b / a for a, b in zip(*seconds["step cpu"].values(), strict=True)
        ),
        "update_seconds": {name: min(values) for name, values in seconds["update"].items()},
        "step_seconds": {name: min(values) for name, values in seconds["step"].items()},
    }


def states() -> dict[str, int]:
    """The bytes of all variables of each optimizer for the same network."""
    import keras

    import memfit

    sizes = {}
    weights = network().trainable_variables
    for label, cls in {
        "Adam": keras.optimizers.Adam,
        "memfit Adam8bit": memfit.optimizers.Adam8bit,
        "Adafactor": keras.optimizers.Adafactor,
        "memfit Adafactor": memfit.optimizers.Adafactor,
        "Lion": keras.optimizers.Lion,
    }.items():
        optimizer = cls()
        optimizer.build(weights)
        values = [variable.value for variable in optimizer.variables]
        sizes[label] = sum(int(value.shape.num_elements() * value.dtype.size) for value in values)
    return sizes


def adafactor_is_same() -> bool:
    """Trains by Keras's Adafactor and by memfit's; whether all weights are the same bits."""
    import keras
    import numpy as np
    import tensorflow as tf

    import memfit

    # Otherwise the gradients of convolutions are added up in another order each time, Keras's too.
    tf.config.experimental.enable_op_determinism()
    results = []
    for cls in (keras.optimizers.Adafactor, memfit.optimizers.Adafactor):
        keras.utils.set_random_seed(0)
        # Of weights that get no gradient at all Keras's Adafactor makes NaN: every one of these gets some.
        body = [keras.layers.Conv2D(16, 3, activation="tanh"), keras.layers.Flatten(), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input((12, 12, 3)), *body])
        x, y = (np.random.default_rng(0).normal(size=shape) for shape in ((320, 12, 12, 3), (320, 10)))
        model.compile(cls(0.01), "mse", jit_compile=False)
        model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
        results.append(model.get_weights())
    return all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


def compare_losses(task: str) -> dict[str, Any]:
    """Compares the final losses of both optimizers with the spread over Adam's seeds."""
    adam, ours = (isolated(final_losses, task, name) for name in ("Adam", "Adam8bit"))
    figures: dict[str, Any] = {}
    for number, kind in enumerate(("trained", "validated")):
        a, b = ([losses[number] for losses in each] for each in (adam, ours))
        figures[kind] = {
            "adam": mean(a),
            "adam8bit": mean(b),
            "adam_stdev": stdev(a),
            "adam_spread": max(a) - min(a),
            "within_spread": min(a) <= mean(b) <= max(a),
        }
    return figures


def main() -> None:
    """Measures, prints and writes."""
    sizes = isolated(states)
    print({name: f"{size / sizes['Adam']:.3f} of Adam's" for name, size in sizes.items()})
    times = isolated(step_times)
    print(f"step {times['step_ratio']:.3f}x Adam's; bare updates {times['update_seconds']}")
    same = isolated(adafactor_is_same)
    print(f"Adafactor bit-identical: {same}")
    losses = {}
    for task in TASKS:
        losses[task] = compare_losses(task)
        for kind, row in losses[task].items():
            print(
                f"{task}, {kind}: Adam {row['adam']:.4f} +- {row['adam_stdev']:.4f}, Adam8bit {row['adam8bit']:.4f}"
            )
    file = write(
        "optimizers", {"state_bytes": sizes, "times": times, "adafactor_same_bits": same, "losses": losses}
    )
    print(file)


if __name__ == "__main__":
    main()
