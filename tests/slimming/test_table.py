"""The table: its figures against the real allocator, its texts, bad inputs, what carried-over weights are worth."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from memfit.slimming.closeness import take_sample
from memfit.slimming.comparing import Job, compare
from memfit.slimming.slimmed import Figure, Slimmed, SlimRow
from memfit.slimming.variants import list_variants
from prepared import in_arena

layers = keras.layers


def network() -> keras.Model:
    """Many activations of a MiB each, so that one more or less alive matters little; kernels of 1: quick."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 1, activation="relu", name="stem")(inputs)
    for number in range(8):
        y = layers.Conv2D(16, 1, name=f"conv{number}")(x)
        x = layers.ReLU()(layers.BatchNormalization()(y))
    x = layers.Dense(64, activation="relu")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(count, 32, 32, 3)).astype("float32"), random.integers(0, 4, count)


def measure(name: str) -> int:
    import gc

    import tensorflow as tf

    model = network() if name == "original" else memfit.slim(network(), name)
    x, y = samples(16)
    gc.collect()
    tf.config.experimental.reset_memory_stats("CPU:0")
    for _ in range(3):
        model.train_on_batch(x, y)
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])


@pytest.fixture(scope="module")
def made() -> Slimmed:
    variants = {variant.name: variant for variant in list_variants()}
    chosen = [(variants["frozen"], 0.5), (variants["quantised"], 8)]
    job = Job(network(), 16, memfit.Size("1GiB"), None, samples(16)[0], None)
    return compare(job, chosen, seconds=600)


@pytest.mark.parametrize("name", ["original", "frozen"])
def test_the_predicted_peak_of_a_variant_is_what_the_allocator_measures(made, name):
    figure = made[name].peak
    assert (figure.known, figure.source) == ("predicted", "a recorded step")
    assert figure.value == pytest.approx(in_arena(measure, name, memory="1GiB"), rel=0.08)


def test_every_figure_says_how_it_is_known_and_words_say_what_saves_nothing(made):
    assert made["quantised"].peak is None
    assert any("saves nothing in training" in note for note in made["quantised"].notes)
    assert "saves no training memory" not in made["frozen"].notes
    assert made["frozen"].peak.value < 0.8 * made["original"].peak.value
    assert made["frozen"].error.value < 1e-6
    assert made["frozen"].agreement.value == 1
    assert made.verdict == "batch 16 in 1.00 GiB: fits as it is"
    assert made["quantised"].file.known == "measured"
    assert made["original"].step_time.value == 1
    known = {figure.known for row in made for figure in vars(row).values() if isinstance(figure, Figure)}
    assert known == {"predicted", "measured", "counted"}
    text = repr(made)
    assert "accuracy after it" in text
    assert re.search(r"predicted +predicted +predicted +counted +counted +measured +measured", text)
    assert '<th class="mf-number">training peak</th>' in made._repr_html_()
    plain = json.loads(json.dumps(made.to_json()))
    assert plain["variants"][0]["name"] == "original"
    assert plain["variants"][1]["peak"]["known"] == "predicted"
    with pytest.raises(memfit.InvalidInput, match="no such variant in this table"):
        made["tiny"]


def test_where_the_time_is_up_peaks_come_from_shapes_and_variants_are_combined_where_none_fits():
    chosen = ("narrow", "mixed precision")
    variants = [(variant, variant.default) for variant in list_variants() if variant.name in chosen]
    quick = compare(Job(network(), 16, memfit.Size("1MiB"), None, None, None), variants, seconds=0)
    assert quick["original"].peak.source == "a recorded step"
    assert quick["narrow"].peak.is_rough
    assert quick["narrow"].peak.value < quick["original"].peak.value
    assert 0 < quick["narrow"].energy.value < 1
    assert re.search(r"narrow 0.75 .* ~\d+ MiB", repr(quick))
    assert quick["narrow"].step_time is None
    assert quick.rows[-1].name == "narrow + mixed precision"
    nearest = "batch 16 in 1.0 MiB: no variant fits; the nearest is narrow + mixed precision, which peaks at "
    assert quick.verdict.startswith(nearest)
    assert "pass a sample" in repr(quick)


def test_bad_input_is_refused_in_a_sentence():
    model = network()
    with pytest.raises(
        memfit.InvalidInput, match=r"A sample must have the shape of the model's input, \(None, 32, 32, 3\)"
    ):
        memfit.slim(model, data=np.zeros((4, 16, 16, 3)))
    with pytest.raises(memfit.InvalidInput, match="not a size of memory"):
        memfit.slim(model, memory="much")
    with pytest.raises(memfit.InvalidInput, match="at least one sample"):
        memfit.slim(model, batch_size=0)
    row = SlimRow("narrow", "narrow 0.75", why_not="nothing to remove")
    with pytest.raises(
        memfit.InvalidInput, match="'narrow' cannot be built from this model: nothing to remove"
    ):
        row.model()


def test_a_model_with_nothing_to_slim_says_so_for_each_variant():
    model = keras.Sequential([keras.Input((4,)), layers.Rescaling(2.0)])
    model.compile("sgd", "mse", jit_compile=False)
    variants = [
        (variant, variant.default) for variant in list_variants() if variant.name != "mixed precision"
    ]
    with pytest.raises(memfit.InvalidInput, match=r"nothing to slim in this model \(separable: .*frozen: "):
        compare(Job(model, 2, None, None, None, None), variants)


def digits() -> tuple[np.ndarray, ...]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x.reshape(-1, 8, 8, 1) / 16).astype("float32")
    return x[:1400], y[:1400], x[1400:], y[1400:]


@pytest.fixture(scope="module")
def trained() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    x, y, _, _ = digits()
    model.fit(x, y, epochs=6, batch_size=64, verbose=0)
    return model


@pytest.mark.parametrize(("name", "amount"), [("separable", None), ("narrow", 0.5), ("low-rank", 0.8)])
def test_carried_over_weights_beat_random_ones_after_two_epochs_on_digits(trained, name, amount):
    x, y, x_test, y_test = digits()

    def loss_after_two_epochs(model: keras.Model) -> float:
        keras.utils.set_random_seed(3)
        model.fit(x, y, epochs=2, batch_size=64, verbose=0)
        right = np.asarray(model(x_test))[np.arange(len(y_test)), y_test]
        return float(-np.log(right + 1e-7).mean())

    carried = memfit.slim(trained, name, amount)
    random = keras.models.clone_model(carried)
    random.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    assert random.count_params() == carried.count_params() < trained.count_params()
    assert loss_after_two_epochs(carried) < 0.8 * loss_after_two_epochs(random)


def test_a_sample_of_a_dataset_does_not_move_its_order_on() -> None:
    def batches() -> tf.data.Dataset:
        numbers = np.arange(40, dtype="float32")[:, None]
        return tf.data.Dataset.from_tensor_slices((numbers, numbers)).shuffle(40, seed=1).batch(8)

    model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    looked, plain = batches(), batches()
    assert take_sample(model, looked).shape == (8, 1)
    for one, two in zip(looked, plain, strict=True):
        np.testing.assert_array_equal(one[0], two[0])
