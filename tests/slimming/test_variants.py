"""Each variant on small networks: the weights are carried over, the original stays as it was."""

import keras
import numpy as np
import pytest

import memfit
from memfit.slimming.calls import calls_of
from memfit.slimming.factorising import factor
from memfit.slimming.shapes import read_shapes
from memfit.slimming.variants.frozen import Frozen

layers = keras.layers
NAMES = ("separable", "narrow", "low-rank", "smaller input", "mixed precision", "frozen", "LoRA", "quantised")
X = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")


def compiled(model, **arguments):
    options = {"optimizer": keras.optimizers.Adam(3e-4, beta_1=0.8), "loss": "mse", "jit_compile": False}
    model.compile(**{**options, **arguments})
    return model


@pytest.fixture
def branches() -> keras.Model:
    """Adds, concatenations, a depthwise and a shared layer, squeeze and excitation, a nested model."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(16, 3, padding="same", name="stem")(inputs)
    x = layers.ReLU()(layers.BatchNormalization(name="stem_norm")(x))
    y = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="depthwise")(x)
    y = layers.Conv2D(16, 1, name="project")(y)
    x = layers.Add()([x, y])
    gate = layers.Reshape((1, 1, 16))(layers.GlobalAveragePooling2D()(x))
    x = x * layers.Conv2D(16, 1, activation="sigmoid", name="gate")(gate)
    shared = layers.Conv2D(16, 3, padding="same", activation="relu", name="shared")
    x = layers.Concatenate()([shared(x), shared(x), y])
    inner_in = keras.Input((16, 16, 48))
    inner = layers.Conv2D(24, 3, strides=2, padding="same", use_bias=False, name="inner_conv")(inner_in)
    inner = keras.Model(inner_in, layers.BatchNormalization(name="inner_norm")(inner), name="inner")
    x = layers.GlobalAveragePooling2D()(inner(x))
    x = layers.Dense(32, activation="relu", name="hidden")(x)
    return compiled(keras.Model(inputs, layers.Dense(5, activation="softmax", name="last")(x)))


@pytest.mark.parametrize("name", NAMES)
def test_a_variant_is_another_compiled_model_and_the_original_stays_as_it_was(branches, name):
    before, outputs = branches.get_weights(), np.asarray(branches(X))
    trainable, optimizer, policies = (
        [layer.trainable for layer in branches.layers],
        branches.optimizer,
        [layer.dtype_policy.name for layer in branches.layers],
    )
    new = memfit.slim(branches, name, 0.5 if name == "low-rank" else None)
    assert new is not branches
    assert not {id(weight) for weight in new.weights} & {id(weight) for weight in branches.weights}
    if name != "quantised":
        assert type(new.optimizer).__name__ in ("Adam", "LossScaleOptimizer")
        assert new.optimizer.get_config() == branches.optimizer.get_config()
        assert (new.loss, new.jit_compile) == ("mse", False)
    if name == "narrow":  # tracing a step takes seconds
        new.train_on_batch(X, np.zeros((4, 5), "float32"))
    assert branches.optimizer is optimizer
    assert trainable == [layer.trainable for layer in branches.layers]
    assert policies == [layer.dtype_policy.name for layer in branches.layers]
    assert all(np.array_equal(a, b) for a, b in zip(before, branches.get_weights(), strict=True))
    np.testing.assert_array_equal(outputs, np.asarray(branches(X)))
    assert branches.get_layer("inner").name == "inner"
    if name not in ("narrow", "quantised"):
        assert new.get_layer("inner").layers  # what was nested is nested


@pytest.mark.parametrize("name", ["frozen", "LoRA", "smaller input"])
def test_what_changes_no_weight_gives_the_same_outputs(branches, name):
    new = memfit.slim(branches, name)
    if name == "smaller input":
        assert new.input_shape == (None, 12, 12, 3)
        assert all(
            np.array_equal(a, b) for a, b in zip(branches.get_weights(), new.get_weights(), strict=True)
        )
    else:
        np.testing.assert_allclose(np.asarray(new(X)), np.asarray(branches(X)), atol=1e-6)


def test_factors_are_as_near_as_the_singular_value_decomposition_says():
    random = np.random.default_rng(0)
    for shape in ((9, 32), (32, 9), (5, 9, 12)):
        matrix = random.normal(size=shape)
        left, right = factor(matrix, 2)
        u, s, v = np.linalg.svd(matrix, full_matrices=False)
        best = (u[..., :2] * s[..., None, :2]) @ v[..., :2, :]
        np.testing.assert_allclose(left @ right, best, atol=1e-9)
    assert np.isfinite(factor(np.zeros((3, 4)), 2)[0]).all()


def test_separable_is_exact_where_the_trained_kernel_is():
    keras.utils.set_random_seed(0)
    teacher = keras.Sequential(
        [keras.Input((9, 9, 8)), layers.SeparableConv2D(12, 3, dilation_rate=2, activation="relu")]
    )
    model = compiled(
        keras.Sequential([keras.Input((9, 9, 8)), layers.Conv2D(12, 3, dilation_rate=2, activation="relu")])
    )
    depthwise, pointwise, bias = teacher.get_weights()
    model.set_weights([depthwise * pointwise[0, 0][None, None], bias + 0.1])
    new = memfit.slim(model, "separable")
    assert isinstance(new, keras.Sequential)
    assert new.count_params() < model.count_params()
    x = np.random.default_rng(0).normal(size=(3, 9, 9, 8)).astype("float32")
    np.testing.assert_allclose(np.asarray(new(x)), np.asarray(model(x)), atol=1e-5)


def test_low_rank_is_exact_where_the_matrix_is():
    model = compiled(
        keras.Sequential(
            [keras.Input((8, 8, 32)), layers.Conv2D(48, 1, strides=2, activation="relu"), layers.Flatten()]
        )
    )
    random = np.random.default_rng(0)
    model.layers[0].set_weights(
        [(random.normal(size=(32, 3)) @ random.normal(size=(3, 48)))[None, None], random.normal(size=48)]
    )
    new = memfit.slim(model, "low-rank", 0.999)
    assert new.layers[0].layers[0].filters == 3
    x = random.normal(size=(3, 8, 8, 32)).astype("float32")
    np.testing.assert_allclose(np.asarray(new(x)), np.asarray(model(x)), rtol=1e-4, atol=1e-4)


def silence(model: keras.Model, names: list[str], channels: list[int]) -> None:
    """Lets layers give nothing in some channels."""
    for name in names:
        layer = model.get_layer(name)
        weights = layer.get_weights()
        for weight in weights[:2] if isinstance(layer, layers.BatchNormalization) else weights:
            weight[..., channels] = 0
        layer.set_weights(weights)


def test_narrow_removes_the_least_important_first_along_everything_that_depends_on_them():
    keras.utils.set_random_seed(2)
    inputs = keras.Input((8, 8, 3))
    x = layers.BatchNormalization(name="norm")(layers.Conv2D(8, 3, padding="same", name="a")(inputs))
    y = layers.Conv2D(8, 3, padding="same", activation="relu", name="b")(x)
    y = layers.Conv2D(8, 1, name="c")(layers.DepthwiseConv2D(3, padding="same", name="d")(y))
    x = layers.Concatenate()([layers.Add()([x, y]), layers.MaxPooling2D(1)(y)])
    x = layers.Conv2DTranspose(8, 2, strides=2, name="up")(x)
    x = layers.Dense(8, activation="relu", name="hidden")(layers.Flatten()(layers.AveragePooling2D(4)(x)))
    model = compiled(keras.Model(inputs, layers.Dense(3, name="last")(x)))
    removed = [1, 2, 5, 7]
    silence(model, ["a", "norm", "b", "c", "hidden"], removed)
    up = model.get_layer("up")
    kernel, bias = up.get_weights()
    kernel[:, :, removed], bias[removed] = 0, 0
    up.set_weights([kernel, bias])
    new = memfit.slim(model, "narrow", 0.5)
    widths = [
        new.get_layer(name).output.shape[-1] for name in ("a", "norm", "b", "d", "c", "up", "hidden", "last")
    ]
    assert widths == [4] * 7 + [3]
    x = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype("float32")
    np.testing.assert_allclose(np.asarray(new(x)), np.asarray(model(x)), atol=1e-5)


def test_channels_that_cannot_be_followed_stay_and_the_layer_is_named(branches):
    inputs = keras.Input((6, 8))
    x = layers.Dense(16, name="into_attention")(inputs)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8, name="attention")(x, x)])
    x = layers.Dense(32, activation="relu", name="free")(x)
    x = layers.LSTM(4, name="recurrent")(layers.Dense(16, name="into_lstm")(x))
    model = compiled(keras.Model(inputs, layers.Lambda(lambda t: t * 2, name="twice")(layers.Dense(2)(x))))
    table_row = memfit.slim(model, "narrow", 0.5)
    assert table_row.get_layer("into_attention").units == 16
    assert table_row.get_layer("into_lstm").units == 16
    assert table_row.get_layer("free").units == 16
    pinned = compiled(keras.Model(inputs, layers.LSTM(4, name="state")(layers.Dense(16)(inputs))))
    with pytest.raises(memfit.InvalidInput, match="every channel has to stay that meet state"):
        memfit.slim(pinned, "narrow")


def test_the_size_of_the_input_is_refused_where_weights_depend_on_it():
    flat = keras.Sequential(
        [keras.Input((16, 16, 3)), layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(2, name="d")]
    )
    with pytest.raises(memfit.InvalidInput, match="the size of the input fixes the weights of d"):
        memfit.slim(compiled(flat), "smaller input")
    vector = compiled(keras.Sequential([keras.Input((16,)), layers.Dense(4)]))
    with pytest.raises(memfit.InvalidInput, match="none of its inputs is an image"):
        memfit.slim(vector, "smaller input")


class Subclassed(keras.Model):
    """A model whose layers are called in its own code."""

    def __init__(self, units=32, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.first, self.second = layers.Dense(units), layers.Dense(units)
        self.last = layers.Dense(2)

    def call(self, x):
        return self.last(self.second(self.first(x)))

    def get_config(self):
        return {"units": self.units}


def test_a_subclassed_model_says_why_not_and_is_slimmed_where_it_can_be():
    x = np.random.default_rng(0).normal(size=(4, 64)).astype("float32")
    model = compiled(Subclassed(64))
    model(x)
    with pytest.raises(memfit.InvalidInput, match="Subclassed computes in its own call"):
        memfit.slim(model, "narrow")
    for name in ("frozen", "LoRA", "quantised", "mixed precision"):
        new = memfit.slim(model, name)
        np.testing.assert_allclose(np.asarray(new(x), "float32"), np.asarray(model(x)), atol=0.1)
    assert len(memfit.slim(model, "frozen", 0.3).trainable_weights) == 4


def test_a_frozen_layer_with_layers_inside_says_how_it_stays_frozen_when_it_is_loaded(tmp_path):
    inputs = keras.Input((6, 8))
    x = layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs)
    model = compiled(keras.Model(inputs, layers.Dense(2)(layers.Dense(8)(x))))
    made = Frozen().make(model, 0.5)
    assert any("inside of attention are trained again" in note for note in made.notes)
    frozen = made.model
    frozen.save(tmp_path / "frozen.keras")
    loaded = keras.models.load_model(tmp_path / "frozen.keras", compile=False)
    attention = loaded.get_layer("attention")
    attention.trainable = True
    attention.trainable = False
    assert len(loaded.trainable_variables) == len(frozen.trainable_variables)


class Tied(layers.Layer):
    """Multiplies with the kernel of another layer."""

    def __init__(self, other, **kwargs):
        super().__init__(**kwargs)
        self.matrix = other.kernel

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.matrix))


def test_two_layers_that_share_a_weight_are_left_alone():
    inputs = keras.Input((32,))
    one = layers.Dense(32, name="one")
    x = one(inputs)
    model = keras.Model(inputs, Tied(one)(x))
    with pytest.raises(memfit.InvalidInput, match="share a weight"):
        memfit.slim(compiled(model), "low-rank")


def test_losses_metrics_and_weights_are_compiled_again():
    inputs = keras.Input((8, 8, 8))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(16, 3)(inputs))
    model = keras.Model(inputs, {"a": layers.Dense(1)(x), "b": layers.Dense(1)(x)})
    seen = []

    def own_loss(y, p):
        seen.append(1)
        return keras.ops.mean((y - p) ** 2)

    metric = keras.metrics.MeanAbsoluteError(name="off")
    losses = {"a": own_loss, "b": "mae"}
    compiled(model, optimizer="sgd", loss=losses, loss_weights={"a": 1.0, "b": 0.0}, metrics={"a": [metric]})
    new = memfit.slim(model, "narrow")
    y = np.ones((2, 1), "float32")
    logs = new.train_on_batch(np.ones((2, 8, 8, 8), "float32"), {"a": y, "b": y}, return_dict=True)
    assert seen
    assert "a_off" in logs
    assert logs["loss"] == pytest.approx(logs["a_loss"])
    assert float(metric.result()) == 0.0  # that of the original has seen nothing


def test_flops_are_those_that_are_known():
    inputs = keras.Input((8, 8, 4))
    x = layers.Conv2D(6, 3, padding="same")(inputs)
    x = layers.SeparableConv2D(10, 3, padding="same")(layers.DepthwiseConv2D(3, strides=2, padding="same")(x))
    model = compiled(keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling2D()(x))))
    products = 64 * 9 * 4 * 6 + 16 * 9 * 6 + 16 * (9 * 6 + 6 * 10) + 10 * 2
    assert read_shapes(model).flops == 2 * products
    assert len(calls_of(model).each) == 5


def test_bad_amounts_and_names_are_refused_in_a_sentence(branches):
    for name, amount in (("narrow", 1.5), ("narrow", 0), ("LoRA", 2.5), ("separable", 0), ("frozen", True)):
        with pytest.raises(memfit.InvalidInput, match=f"The amount of '{name}' is .*: "):
            memfit.slim(branches, name, amount)
    with pytest.raises(memfit.InvalidInput, match=r"no such variant.*'separable', 'narrow'"):
        memfit.slim(branches, "tiny")
    with pytest.raises(memfit.InvalidInput, match="needs a variant"):
        memfit.slim(branches, amount=0.5)
    with pytest.raises(memfit.InvalidInput, match="must be compiled"):
        memfit.slim(keras.Sequential([keras.Input((2,)), layers.Dense(1)]))
    both = memfit.slim(branches, "narrow + mixed precision")
    assert both.count_params() < branches.count_params()
    assert both.get_layer("hidden").compute_dtype == "bfloat16"
