"""What else lies in an arena is not planned with: data, other networks."""

from typing import Any

from prepared import in_arena

MIB = 2**20
ARENA, HELD = 92 * MIB, 32 * MIB


def _train_beside(held: int) -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    import memfit

    layers = keras.layers
    x = inputs = keras.Input((256,))
    for _ in range(8):
        x = layers.Activation("tanh")(layers.Dense(256)(x))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile("sgd", "mse", jit_compile=False)
    beside = tf.raw_ops.Empty(shape=[held], dtype=tf.uint8, init=False)
    rows = np.ones((4096, 256), "float32")
    plan = memfit.plan(model, 4096, memory=ARENA, allow="exact", data=(rows, rows[:, :1]))
    run = memfit.fit(model, rows, rows[:, :1], batch_size=4096, verbose=0, plan=plan).memory
    return {
        "stock": plan.recipe.is_stock,
        "predicted": int(plan.predicted),
        "measured": int(run.measured),
        "events": [event for event in run.events if event.phase],
        "text": repr(plan),
        "held": len(beside),
    }


def test_what_other_tensors_have_of_an_arena_is_not_planned_with() -> None:
    alone, beside = (in_arena(_train_beside, held, memory=ARENA) for held in (1, HELD))
    assert alone["stock"]
    assert not beside["stock"]
    assert HELD < beside["predicted"] <= ARENA
    assert not beside["events"]
    assert "that are in use already" in beside["text"]
    assert "in use already" not in alone["text"]
