"""Adam with moments in 8 bits: close to Adam in every mode, saved and loaded, a quarter of the state."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from memfit.optimizers import blocks
from memfit.planning.optimizer_sizes import kept_by

SHAPES = [(64, 100), (7,), (3, 3, 24, 24), (5003,)]


def _train(
    cls: Any, compiled: bool | None = False, steps: int = 12, **settings: Any
) -> tuple[list[Any], Any]:
    random = np.random.default_rng(3)
    variables = [keras.Variable(random.normal(size=shape), dtype="float32") for shape in SHAPES]
    optimizer = cls(1e-3, **settings)
    optimizer.build(variables)

    def step(*gradients: Any) -> None:
        optimizer.apply(list(gradients), variables)

    run = step if compiled is None else tf.function(step, jit_compile=compiled, autograph=False)
    for _ in range(steps):
        run(*(tf.constant(1 + random.normal(size=shape), tf.float32) for shape in SHAPES))
    return [variable.numpy() for variable in variables], optimizer


@pytest.mark.parametrize("compiled", [None, False, True])
def test_it_moves_weights_as_adam_does_but_for_rounding(compiled: bool | None) -> None:
    adam, _ = _train(keras.optimizers.Adam, False)
    ours, _ = _train(memfit.optimizers.Adam8bit, compiled)
    np.testing.assert_array_equal(ours[1], adam[1])  # a small one, in float32
    for a, b in zip(adam, ours, strict=True):
        np.testing.assert_allclose(b, a, atol=0.05 * 12 * 1e-3)
        assert np.abs(b - a).mean() < 0.005 * 12 * 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.1, "clipnorm": 1.0},
        {"use_ema": True, "ema_overwrite_frequency": 3, "global_clipnorm": 2.0},
        {"gradient_accumulation_steps": 2},
    ],
    ids=str,
)
def test_what_kerass_optimizers_can_do_it_can_do(settings: dict[str, Any]) -> None:
    adam, _ = _train(keras.optimizers.Adam, **settings)
    ours, _ = _train(memfit.optimizers.Adam8bit, **settings)
    for a, b in zip(adam, ours, strict=True):
        np.testing.assert_allclose(b, a, atol=0.05 * 12 * 1e-3)


def test_a_second_moment_follows_changes_that_are_smaller_than_a_code() -> None:
    variable = keras.Variable(np.zeros(4096, "float32"))
    adam, ours = keras.optimizers.Adam(), memfit.optimizers.Adam8bit()
    sizes = np.geomspace(1e-3, 1, 4096).astype("float32")
    for optimizer in (adam, ours):
        optimizer.build([variable])
        run = tf.function(lambda g, o=optimizer: o.apply([g], [variable]), autograph=False)
        for scale in [1.0] * 20 + [0.1] * 400:
            run(tf.constant(scale * sizes))
    _, velocity = memfit.optimizers.adam8bit.dequantise(ours, 0, [4096])
    expected = adam.variables[3].numpy()
    assert np.mean(velocity / expected) == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(np.sqrt(velocity), np.sqrt(expected), rtol=0.35)


def test_sparse_gradients_are_taken_as_adam_takes_them() -> None:
    results = []
    for cls in (keras.optimizers.Adam, memfit.optimizers.Adam8bit):
        table = keras.Variable(np.ones((64, 80), "float32"), name="embeddings")
        optimizer = cls(1e-3)
        optimizer.build([table])
        values = tf.constant(np.random.default_rng(0).normal(size=(6, 80)), tf.float32)
        for rows in ([1, 1, 5, 9, 30, 63], [2, 1, 5, 5, 5, 0]):
            gradient = tf.IndexedSlices(values, tf.constant(rows), tf.constant([64, 80]))
            optimizer.apply([gradient], [table])
        results.append(table.numpy())
    np.testing.assert_allclose(results[1], results[0], atol=1e-4)
    assert (results[1][40] == 1).all()


def test_large_variables_are_computed_in_parts_as_they_are_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_PART", 4)
    parts = [_train(memfit.optimizers.Adam8bit, compiled)[0] for compiled in (None, False)]
    monkeypatch.setattr(blocks, "_PART", 1024)
    whole, _ = _train(memfit.optimizers.Adam8bit, False)
    for a, b, c in zip(whole, *parts, strict=True):
        for other in (b, c):  # the last bit of a float may round to another code
            np.testing.assert_allclose(other, a, atol=1e-4)
            assert np.abs(other - a).mean() < 1e-6


def test_it_keeps_a_quarter_of_adams_state_and_that_is_what_is_said() -> None:
    variables = [keras.Variable("zeros", (512, 512), name="kernel"), keras.Variable("zeros", (512,))]
    adam, ours = keras.optimizers.Adam(), memfit.optimizers.Adam8bit()
    sizes = []
    for optimizer in (adam, ours):
        optimizer.build(variables)
        slots = [v.value for v in optimizer.variables if len(v.shape)]
        sizes.append(sum(slot.shape.num_elements() * slot.dtype.size for slot in slots))
        assert kept_by(optimizer, variables) == sizes[-1]
    assert kept_by(memfit.optimizers.Adam8bit, variables) == sizes[1]
    assert 0.25 < sizes[1] / sizes[0] < 0.26


def test_it_trains_on_after_it_was_saved_and_loaded_as_if_nothing_had_been(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(128), keras.layers.Dense(1)])
    schedule = keras.optimizers.schedules.CosineDecay(0.01, 10)
    model.compile(memfit.optimizers.Adam8bit(schedule, weight_decay=0.01), "mse")
    x, y = np.random.default_rng(0).normal(size=(16, 40)), np.ones((16, 1))
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is memfit.optimizers.Adam8bit
    assert {v.dtype for v in loaded.optimizer.variables} == {"int64", "float32", "int8", "uint8"}
    for each in (model, loaded):
        each.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(b, a)


def test_loss_scaling_skips_a_step_that_overflows() -> None:
    variable = keras.Variable(np.zeros(4096, "float32"))
    optimizer = keras.optimizers.LossScaleOptimizer(memfit.optimizers.Adam8bit())
    optimizer.build([variable])
    optimizer.apply([tf.fill([4096], np.inf)], [variable])
    assert (variable.numpy() == 0).all()
    optimizer.apply([tf.fill([4096], 1e4)], [variable])
    np.testing.assert_allclose(variable.numpy(), -1e-3, rtol=1e-3)


def test_amsgrad_is_refused() -> None:
    with pytest.raises(memfit.InvalidInput, match="no AMSGrad"):
        memfit.optimizers.Adam8bit(amsgrad=True)


def test_values_are_rounded_to_the_nearest_code_and_stay_there() -> None:
    random = np.random.default_rng(0)
    values = (random.normal(size=(9, 256)) * np.exp(random.normal(size=(9, 256)))).astype("float32")
    values[3] = 0
    for encode, decode, x in (
        (blocks.encode_even, blocks.decode_even, values),
        (blocks.encode_squares, blocks.decode_squares, np.abs(values)),
    ):
        codes, scales = encode(x, blocks.NEAREST)
        read = decode(codes, scales)
        assert (read[3].numpy() == 0).all()
        assert np.abs(read - x).max() <= np.abs(x).max() / 127
        np.testing.assert_array_equal(encode(read, blocks.NEAREST)[0], codes)
        for step in (0, 1, 12345, 2**31):
            rounded, _ = encode(x, blocks.walking(tf.constant(step, tf.int64)))
            assert np.abs(rounded.numpy().astype(int) - codes.numpy()).max() <= 1


def test_a_root_is_never_rounded_to_nothing() -> None:
    values = np.array([[1.0] + [1e-12] * 255], "float32")
    codes, scales = blocks.encode_squares(values, blocks.walking(tf.constant(5, tf.int64)))
    assert blocks.decode_squares(codes, scales).numpy().min() > 0
