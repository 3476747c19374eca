"""Rematerialised steps against stock Keras: the same losses, weights and states after several updates."""

import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from keras.src.backend.common.masking import get_keras_mask

from memfit.errors import InvalidInput
from memfit.steps.rematerialisation import Segments, find_choices, rematerialise
from prepared import in_arena

BATCH = 6
STEPS = 4


class Centred(layers.Layer):
    """Adds a loss in its call."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


def convolutions() -> keras.Model:
    """Residual, nested, shared and frozen layers, two inputs and outputs, dropout, statistics and added losses."""
    image, other = keras.Input((16, 16, 3), name="image"), keras.Input((5,), name="other")
    start = inside = keras.Input((16, 16, 8))
    inside = layers.Conv2D(8, 3, padding="same", activity_regularizer="l2")(inside)
    inside = layers.BatchNormalization()(inside)
    inside = layers.Dropout(0.3)(layers.Activation("relu")(inside))
    block = keras.Model(start, inside, name="block")
    x = layers.Conv2D(8, 3, padding="same", kernel_regularizer="l2")(image)
    x = layers.add([x, block(x)])
    x = layers.add([x, block(x)])
    frozen = layers.Conv2D(8, 1, activation="gelu")
    frozen.trainable = False
    x = Centred()(frozen(x))
    x = layers.MaxPooling2D()(layers.Conv2D(8, 3, padding="same", activation="silu")(x))
    x = layers.concatenate([layers.GlobalAveragePooling2D()(x), layers.Dense(4)(other)])
    x = layers.GaussianNoise(0.1)(x)
    return keras.Model({"image": image, "other": other}, [layers.Dense(3)(x), layers.Dense(2)(x)])


def u_net() -> keras.Model:
    """Never fewer than two live tensors in the middle."""
    x = image = keras.Input((16, 16, 3))
    skips = []
    for width in (4, 8):
        x = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    for width, skip in zip((8, 4), reversed(skips), strict=True):
        x = layers.concatenate([skip, layers.Conv2DTranspose(width, 2, strides=2)(x)])
        x = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
    return keras.Model(image, layers.Conv2D(2, 1)(x))


def sequences() -> keras.Model:
    """Masks from an embedding, attention with dropout, and a recurrent layer, whose loop is not run again."""
    tokens = keras.Input((12,), dtype="int32")
    x = layers.Embedding(20, 16, mask_zero=True)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8, dropout=0.2)(x, x))
    x = x + layers.Dense(16)(layers.Dropout(0.2)(layers.Dense(64, activation="gelu")(x)))
    return keras.Model(tokens, layers.Dense(4)(layers.LSTM(16, return_sequences=True)(x)))


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.stages = [layers.Dense(32, activation="tanh") for _ in range(4)]
        self.drop = layers.Dropout(0.2)
        self.out = layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        for stage in self.stages:
            x = self.drop(stage(x), training=training)
        return self.out(x)


def subclassed() -> keras.Model:
    model = Subclassed()
    model(np.zeros((1, 8), "float32"))
    return model


def data_for(model: keras.Model) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(3)

    def batch() -> tuple[Any, Any]:
        if isinstance(model, Subclassed):
            shapes: Any = (8,)
            x = generator.normal(size=(BATCH, 8)).astype("float32")
        elif isinstance(model.input, dict):
            x = {
                k: generator.normal(size=(BATCH, *v.shape[1:])).astype("float32")
                for k, v in model.input.items()
            }
        elif model.input.dtype == "int32":
            x = generator.integers(0, 20, size=(BATCH, *model.input.shape[1:]))
        else:
            x = generator.normal(size=(BATCH, *model.input.shape[1:])).astype("float32")
        shapes = [(1,)] if isinstance(model, Subclassed) else [o.shape[1:] for o in model.outputs]
        y = [generator.normal(size=(BATCH, *shape)).astype("float32") for shape in shapes]
        return tf.nest.map_structure(tf.constant, x), [tf.constant(part) for part in y]

    return [batch() for _ in range(STEPS)]


def variables_of(model: keras.Model) -> list[Any]:
    return list({id(variable): variable for variable in model.variables}.values())


def train(
    model: keras.Model, call: Callable[..., Any], wrap: Callable[[Any], Any]
) -> tuple[list[float], list[Any]]:
    """Makes some updates from the model's present state, puts it back, and returns what came out."""
    before = [variable.numpy() for variable in variables_of(model)]
    schedule = keras.optimizers.schedules.CosineDecay(0.05, STEPS)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, clipnorm=5.0)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.MeanSquaredError()

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            predicted = tf.nest.flatten(call(x, training=True))
            parts = [loss_of(true, out) for true, out in zip(y, predicted, strict=True)]
            loss = tf.add_n([tf.cast(part, tf.float32) for part in [*parts, *model.losses]])
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    step = wrap(step)
    losses = [float(step(x, y)) for x, y in data_for(model)]
    after = [variable.numpy() for variable in variables_of(model)]
    for variable, value in zip(variables_of(model), before, strict=True):
        variable.assign(value)
    return losses, after


def specs_for(model: keras.Model) -> Any:
    return tf.TensorSpec((BATCH, 8)) if isinstance(model, Subclassed) else None


def smallest(model: keras.Model) -> Segments:
    """The choice that recomputes most, as it comes back from a file."""
    choice = find_choices(model, BATCH, specs_for(model))[-1]
    assert choice.recomputed > 0
    assert choice.activation_bytes < 0.9 * choice.stock_bytes
    return Segments.from_json(json.loads(json.dumps(choice.to_json())))


def assert_same(model: keras.Model, stock: Any, ours: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(ours[0], stock[0], rtol=rtol)
    for variable, theirs, mine in zip(variables_of(model), stock[1], ours[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol, err_msg=variable.path)


def in_a_graph(step: Any) -> Any:
    return tf.function(step)


def with_xla(step: Any) -> Any:
    return tf.function(step, jit_compile=True)


@pytest.fixture(scope="module", autouse=True)
def _seeded() -> None:
    keras.utils.set_random_seed(1)


@pytest.mark.parametrize(
    "build", [convolutions, u_net, sequences, subclassed], ids=lambda build: build.__name__
)
def test_training_is_the_same_in_a_graph(build: Callable[[], keras.Model]) -> None:
    model = build()
    segments = smallest(model)
    stock = train(model, model, in_a_graph)
    assert_same(model, stock, train(model, rematerialise(model, segments), in_a_graph))
    assert stock[0][0] != pytest.approx(stock[0][-1], rel=1e-4), "nothing was trained"


@pytest.mark.parametrize("build", [convolutions, u_net], ids=lambda build: build.__name__)
def test_training_is_the_same_with_xla(build: Callable[[], keras.Model]) -> None:
    model = build()
    segments = smallest(model)
    stock = train(model, model, with_xla)
    assert_same(model, stock, train(model, rematerialise(model, segments), with_xla), rtol=1e-4, atol=1e-5)


def test_training_is_the_same_eagerly_and_with_an_unknown_batch_and_in_a_copy() -> None:
    model = convolutions()
    segments = smallest(model)
    stock = train(model, model, in_a_graph)
    call = rematerialise(model, segments)
    assert_same(model, stock, train(model, call, lambda step: step))

    def any_batch(step: Any) -> Any:
        x = {k: tf.TensorSpec((None, *v.shape[1:])) for k, v in model.input.items()}
        y = [tf.TensorSpec((None, *output.shape[1:])) for output in model.outputs]
        return tf.function(step, input_signature=[x, y])

    assert_same(model, stock, train(model, call, any_batch))
    copy = keras.models.clone_model(model)
    for mine, theirs in zip(variables_of(copy), variables_of(model), strict=True):
        mine.assign(theirs)
    assert_same(model, stock, train(copy, rematerialise(copy, segments), in_a_graph))


def test_gradients_are_the_same_in_a_loop_in_the_graph() -> None:
    model = u_net()
    call = rematerialise(model, smallest(model))
    x = data_for(model)[0][0]

    def summed(forward: Callable[..., Any]) -> Any:
        @tf.function
        def loop() -> Any:
            def body(i: Any, sums: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(forward(x[i : i + 2], training=True) ** 2)
                found = tape.gradient(loss, model.trainable_variables)
                return i + 2, [a + b for a, b in zip(sums, found, strict=True)]

            zeros = [tf.zeros(weight.shape) for weight in model.trainable_variables]
            return tf.while_loop(lambda i, _: i < BATCH, body, (0, zeros))[1]

        return loop()

    for stock, ours in zip(summed(model), summed(call), strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)


def test_nothing_waits_for_the_gradient_of_a_bias() -> None:
    # oneDNN, where the processor has it on, merges that gradient into the filter's, which waits for recomputed ops.
    model = convolutions()
    call = rematerialise(model, smallest(model))

    def gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_mean(output) for output in call(x, training=True)])
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    graph = tf.function(gradients).get_concrete_function(data_for(model)[0][0]).graph
    of_biases: set[Any] = set()
    waited_for: set[Any] = set()
    for op in graph.get_operations():
        waited_for |= set(op.control_inputs)
    changed = True
    while changed:  # ops are not listed in the order in which they run
        reached = {
            op
            for op in graph.get_operations()
            if op.type == "BiasAddGrad" or any(tensor.op in of_biases for tensor in op.inputs)
        }
        changed = reached != of_biases
        of_biases = reached
    assert len(of_biases) > 3
    recomputed = {op for op in graph.get_operations() if op.name.startswith("recomputed/")}
    assert any(op.control_inputs for op in recomputed)
    assert not of_biases & waited_for


def _compare_in_mixed_precision() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = u_net()
    stock = train(model, model, in_a_graph)
    # bfloat16 has steps of 4e-3, and gradients are added up in another order.
    ours = train(model, rematerialise(model, smallest(model)), in_a_graph)
    assert_same(model, stock, ours, rtol=2e-3, atol=2e-3)


def test_training_is_the_same_in_mixed_precision() -> None:
    # In an arena, where oneDNN is off: which ops it fuses depends on the processor, and on how many read a tensor.
    in_arena(_compare_in_mixed_precision, memory="1GiB")


def test_the_graph_recomputes_and_the_forward_pass_is_left_alone() -> None:
    model = u_net()
    segments = smallest(model)

    def ops(call: Callable[..., Any]) -> list[Any]:
        def gradients(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(call(x, training=True))
            return tape.gradient(loss, model.trainable_variables)

        graph = tf.function(gradients).get_concrete_function(tf.TensorSpec((BATCH, 16, 16, 3))).graph
        return list(graph.get_operations())

    stock, ours = ops(model), ops(rematerialise(model, segments))
    copies = [op for op in ours if op.name.startswith("recomputed/") and op.type != "NoOp"]
    assert copies
    assert not [op for op in copies if op.op_def.is_stateful]
    for kind in ("AssignVariableOp", "FusedBatchNormV3", "StatelessRandomUniformV2"):
        assert sum(op.type == kind for op in ours) == sum(op.type == kind for op in stock)


def test_masks_of_the_outputs_are_those_of_the_model() -> None:
    x = tokens = keras.Input((12,), dtype="int32")
    x = layers.Embedding(20, 16, mask_zero=True)(x)
    for _ in range(6):
        x = layers.Dense(16, activation="gelu")(x)
    model = keras.Model(tokens, x)
    call = rematerialise(model, smallest(model))
    x = data_for(model)[0][0]

    @tf.function
    def masks() -> Any:
        return get_keras_mask(model(x, training=True)), get_keras_mask(call(x, training=True))

    theirs, ours = masks()
    assert theirs is not None
    np.testing.assert_array_equal(ours, theirs)


def test_segments_of_another_model_are_refused() -> None:
    segments = smallest(u_net())
    other = convolutions()
    call = rematerialise(other, segments)
    x = data_for(other)[0][0]
    with pytest.raises(InvalidInput, match="the model they were chosen for"):
        tf.function(lambda: call(x, training=True), autograph=False).get_concrete_function()
