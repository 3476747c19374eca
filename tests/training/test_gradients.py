"""The gradients of a loop of one's own are those of a plain tape at full batch, however they are computed."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import memfit
from memfit.planning.fidelity import Fidelity
from memfit.planning.levers import LEVERS
from memfit.planning.loss_job import LossJob, few_samples_of, spec_of_call
from memfit.sizes import Size
from memfit.steps.losses.call import read_call
from memfit.steps.losses.function import LossFunction
from memfit.steps.losses.step import GradientStep
from memfit.steps.losses.weights import weight_of
from memfit.steps.recipe import Recipe

BATCH = 10
Loss = Callable[..., Any]


pytestmark = pytest.mark.usefixtures("in_float64")


def numbers(*shape: int) -> Any:
    return np.random.default_rng(3).normal(size=shape)


def network(*inside: Any, outputs: int = 3) -> keras.Model:
    body = [layer for part in inside for layer in (layers.Dense(24, activation="tanh"), part)]
    return keras.Sequential([keras.Input((6,)), *body, layers.Dense(outputs)])


# Each makes a function, its variables, all variables that it may use, and a batch.


def dropout() -> tuple[Any, ...]:
    model = network(layers.Dropout(0.4), layers.GaussianNoise(0.1), layers.Dropout(0.2))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return lambda x, y: loss(y, model(x, training=True)), model, (numbers(BATCH, 6), np.arange(BATCH) % 3)


def added_losses_and_metric() -> tuple[Any, ...]:
    regular = layers.Dense(24, kernel_regularizer="l2", activity_regularizer="l2")
    model, mean = network(regular, layers.LayerNormalization()), keras.metrics.Mean()
    model.mean = mean

    def loss(x: Any, y: Any) -> Any:
        predicted = model(x, training=True)
        mean.update_state(predicted)
        return tf.reduce_mean(tf.square(predicted - y)) + sum(model.losses)

    return loss, model, (numbers(BATCH, 6), numbers(BATCH, 3))


def a_sum() -> tuple[Any, ...]:
    model = network(layers.Dropout(0.3), layers.ReLU())
    return lambda x: tf.reduce_sum(model(x, training=True) ** 2), model, (numbers(BATCH, 6),)


def weighted_samples() -> tuple[Any, ...]:
    model = network(layers.ReLU())
    loss = keras.losses.MeanSquaredError()
    batch = (numbers(BATCH, 6), numbers(BATCH, 3), np.abs(numbers(BATCH)))
    return lambda x, y, weight: loss(y, model(x), sample_weight=weight), model, batch


def variational() -> tuple[Any, ...]:
    encoder, decoder = (
        network(layers.ReLU(), outputs=8),
        keras.Sequential([keras.Input((4,)), layers.Dense(6)]),
    )
    model, seed = keras.Sequential([encoder, layers.Dense(4), decoder]), keras.random.SeedGenerator(5)
    model.build((None, 6))

    def loss(x: Any, beta: Any) -> Any:
        mean, logarithm = tf.split(encoder(x, training=True), 2, axis=1)
        noise = keras.random.normal(tf.shape(mean), dtype="float64", seed=seed)
        rebuilt = decoder(mean + tf.exp(0.5 * logarithm) * noise)
        kl = -0.5 * tf.reduce_sum(1 + logarithm - mean**2 - tf.exp(logarithm), axis=1)
        return tf.reduce_mean(tf.reduce_sum((x - rebuilt) ** 2, axis=1) + beta * kl)

    model.loose = seed
    return loss, model, (numbers(BATCH, 6), tf.constant(0.1, tf.float64))


def embedded() -> tuple[Any, ...]:
    inside = [layers.Embedding(20, 8, mask_zero=True), layers.GRU(6), layers.Dense(1)]
    model = keras.Sequential([keras.Input((5,), dtype="int32"), *inside])
    ids = np.random.default_rng(1).integers(0, 20, (BATCH, 5)).astype("int32")
    return lambda x, y: tf.reduce_mean((model(x, training=True) - y) ** 2), model, (ids, numbers(BATCH, 1))


def branching() -> tuple[Any, ...]:
    model = network(layers.ReLU())

    def loss(x: Any, y: Any) -> Any:
        squares = tf.reduce_mean((model(x) - y) ** 2)
        if squares > 1e9:
            squares = squares / 2
        return squares

    return loss, model, (numbers(BATCH, 6), numbers(BATCH, 3))


def penalised() -> tuple[Any, ...]:
    """WGAN-GP: the loss holds the gradient of a gradient."""
    critic = network(layers.LayerNormalization(), layers.ReLU(), outputs=1)

    def loss(real: Any, fake: Any) -> Any:
        with tf.GradientTape() as tape:
            between = (real + fake) / 2
            tape.watch(between)
            score = critic(between, training=True)
        slopes = tf.sqrt(tf.reduce_sum(tape.gradient(score, between) ** 2, axis=1) + 1e-9)
        return tf.reduce_mean(critic(fake) - critic(real)) + 10 * tf.reduce_mean((slopes - 1) ** 2)

    return loss, critic, (numbers(BATCH, 6), numbers(BATCH, 6)[::-1] + 1)


EXACT = [
    dropout,
    added_losses_and_metric,
    a_sum,
    weighted_samples,
    variational,
    embedded,
    branching,
    penalised,
]


def state(model: Any) -> list[Any]:
    """All that a function changes, as arrays."""
    more = [model.loose.state] if hasattr(model, "loose") else []
    metrics = model.mean.variables if hasattr(model, "mean") else []
    return [variable.numpy() for variable in (*model.non_trainable_variables, *more, *metrics)]


def plain(make: Callable[[], tuple[Any, ...]], xla: bool = False) -> tuple[Any, list[Any], list[Any]]:
    """Loss, gradients and state of a plain tape, as people write it."""
    keras.utils.set_random_seed(7)
    function, model, batch = make()

    @tf.function(jit_compile=xla)
    def step(*tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = function(*tensors)
        return loss, tape.gradient(loss, model.trainable_variables)

    loss, gradients = step(*map(tf.convert_to_tensor, batch))
    return float(loss), dense(gradients), state(model)


def dense(gradients: Any) -> list[Any]:
    return [np.asarray(np.nan if each is None else tf.convert_to_tensor(each)) for each in gradients]


def prepare(
    make: Callable[[], tuple[Any, ...]], xla: bool = False
) -> tuple[LossFunction, LossJob, tuple[Any, ...], Any]:
    keras.utils.set_random_seed(7)
    function, model, batch = make()
    call, tensors = read_call(batch, {})
    weights = [weight_of(variable) for variable in model.trainable_variables]
    loss = LossFunction(function, weights, call, jit_compile=xla)
    try:
        loss.look(tensors)
    except tf.errors.OperatorNotAllowedInGraphError:
        assert loss.convert()
        loss.look(tensors)
    few = few_samples_of(loss, tensors)
    job = LossJob(loss, BATCH, Size(0), Fidelity.EXACT, spec_of_call(loss, tensors), samples=few)
    return loss, job, tensors, model


def assert_same(step: GradientStep, tensors: Any, model: Any, expected: Any) -> None:
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    loss, gradients, changed = expected
    before = state(model)
    step.trace(specs)
    step.note()
    found = step.compute(tensors, specs)
    np.testing.assert_allclose(float(found.loss), loss, rtol=1e-12)
    for one, two in zip(dense(found.gradients), gradients, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)
    for one, two in zip(state(model), changed, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12)
    step.undo()
    for one, two in zip(state(model), before, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("make", EXACT)
def test_parts_and_rematerialised_steps_give_the_gradients_of_a_plain_tape(make):
    expected = plain(make)
    loss, job, tensors, model = prepare(make)
    assert job.why_not_micro_batches is None
    assert job.outputs_differ is None
    tightest = job.segment_choices[0][-1:]
    assert tightest or make in (weighted_samples, embedded)
    for recipe in [Recipe(micro_batch=4), *(Recipe(micro, each) for micro in (None, 4) for each in tightest)]:
        assert_same(GradientStep(loss, recipe), tensors, model, expected)


@pytest.mark.parametrize(("make", "fidelity"), [(branching, Fidelity.EXACT), (dropout, Fidelity.NEAR)])
def test_under_xla_they_are_the_same_but_for_random_numbers_in_parts(make, fidelity):
    expected = plain(make, xla=True)
    loss, job, tensors, model = prepare(make, xla=True)
    segments = job.segment_choices[0][-1]
    assert LEVERS[0].fidelity(job) == fidelity
    for micro_batch in (4, None) if fidelity == Fidelity.EXACT else (None,):
        assert_same(GradientStep(loss, Recipe(micro_batch, segments)), tensors, model, expected)


@pytest.mark.parametrize(("policy", "epsilon"), [("mixed_bfloat16", 2**-7), ("mixed_float16", 2**-10)])
def test_in_16_bits_a_scaled_loss_has_the_gradients_of_a_plain_tape_to_their_precision(policy, epsilon):
    keras.config.set_dtype_policy(policy)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=128.0)

    def scaled() -> tuple[Any, ...]:
        function, model, (x, y) = dropout()
        optimizer.build(model.trainable_variables)
        return lambda *batch: optimizer.scale_loss(function(*batch)), model, (x.astype("float32"), y)

    value, gradients, _ = plain(scaled)
    loss, job, tensors, _ = prepare(scaled)
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    for recipe in (Recipe(micro_batch=4), Recipe(4, job.segment_choices[0][-1])):
        step = GradientStep(loss, recipe)
        step.trace(specs)
        step.note()
        found = step.compute(tensors, specs)
        step.undo()
        assert float(found.loss) == pytest.approx(value, rel=8 * epsilon)
        # Of all gradients at once: of one that nearly cancels out, its own size says nothing of its precision.
        one, two = (
            np.concatenate([np.ravel(g) for g in each]) for each in (dense(found.gradients), gradients)
        )
        assert np.linalg.norm(one - two) <= 8 * epsilon * np.linalg.norm(two)


def normalised() -> tuple[Any, ...]:
    model = network(layers.BatchNormalization(), layers.BatchNormalization())
    return lambda x: tf.reduce_mean(model(x, training=True) ** 2), model, (numbers(BATCH, 6),)


def masked() -> tuple[Any, ...]:
    """Divided by what the mask leaves, which is another number in every part."""
    inside = [layers.Embedding(20, 8, mask_zero=True), layers.LSTM(6, return_sequences=True), layers.Dense(1)]
    model = keras.Sequential([keras.Input((5,), dtype="int32"), *inside])
    ids = np.random.default_rng(1).integers(1, 20, (BATCH, 5)).astype("int32")  # no zero among them
    loss = keras.losses.MeanSquaredError()
    return lambda x, y: loss(y, model(x, training=True)), model, (ids, numbers(BATCH, 5, 1))


def contrasted() -> tuple[Any, ...]:
    model = network(layers.ReLU())

    def loss(x: Any, y: Any) -> Any:
        one, two = (tf.math.l2_normalize(model(each, training=True), 1) for each in (x, y))
        logits = tf.matmul(one, two, transpose_b=True)
        return tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(tf.range(tf.shape(x)[0]), logits, True)
        )

    return loss, model, (numbers(BATCH, 6), numbers(BATCH, 6) + 1)


def test_batch_normalization_is_near_in_parts_and_exact_rematerialised():
    expected = plain(normalised)
    loss, job, tensors, model = prepare(normalised)
    assert job.why_not_micro_batches is None
    assert LEVERS[0].fidelity(job) == Fidelity.NEAR
    assert_same(GradientStep(loss, Recipe(segments=job.segment_choices[0][-1])), tensors, model, expected)


def diced() -> tuple[Any, ...]:
    """Divided by what the batch predicts: of samples that are alike, nearly a mean."""
    model = network(layers.ReLU(), outputs=6)

    def loss(x: Any, y: Any) -> Any:
        predicted = tf.sigmoid(0.01 * model(x, training=True))
        return 1 - 2 * tf.reduce_sum(predicted * y) / (tf.reduce_sum(predicted) + tf.reduce_sum(y))

    return loss, model, (np.ones((BATCH, 6)) + 1e-3 * numbers(BATCH, 6), np.tile([0.0, 1.0], (BATCH, 3)))


@pytest.mark.parametrize("make", [masked, contrasted, diced])
def test_a_loss_that_does_not_add_up_from_parts_is_found(make):
    assert "does not add up" in prepare(make)[1].why_not_micro_batches


def test_what_only_later_samples_show_is_tried_too() -> None:
    def rare() -> tuple[Any, ...]:
        model, kinds = network(layers.ReLU(), outputs=1), np.array([3] * 90 + [7] * 6)

        def loss(x: Any, kind: Any) -> Any:
            is_rare = tf.cast(kind == 7, tf.float64)
            errors = tf.reduce_sum(model(x) ** 2, axis=1)
            return tf.reduce_mean(errors) + tf.reduce_sum(errors * is_rare) / (1 + tf.reduce_sum(is_rare))

        return loss, model, (numbers(96, 6), kinds)

    _, job, _, _ = prepare(rare)
    assert job.why_not_micro_batches is not None
    assert "does not add up" in job.why_not_micro_batches


def test_a_gradient_that_is_zero_but_for_rounding_does_not_keep_a_loss_from_adding_up():
    def make() -> tuple[Any, ...]:
        keras.config.set_dtype_policy("float32")
        x = inputs = keras.Input((4, 6))
        attention = layers.MultiHeadAttention(2, 8)  # what a key's bias adds, softmax takes off
        model = keras.Model(inputs, layers.Dense(1)(attention(x, x)))
        return lambda x: tf.reduce_mean(model(x) ** 2), model, (numbers(BATCH, 4, 6).astype("float32"),)

    assert prepare(make)[1].why_not_micro_batches is None


def test_where_memory_runs_out_fewer_samples_are_tried_and_a_loss_is_never_taken_to_add_up_unseen(
    monkeypatch,
):
    from memfit.steps.losses import additivity

    attempt, counts = additivity._try, []

    def run_out(loss: Any, samples: Any) -> Any:
        counts.append(len(samples[0]))
        if len(samples[0]) > 3:
            raise tf.errors.ResourceExhaustedError(None, None, "failed to allocate")
        return attempt(loss, samples)

    monkeypatch.setattr(additivity, "_try", run_out)
    assert "does not add up" in prepare(diced)[1].why_not_micro_batches
    assert counts == [8, 3]


def test_random_numbers_without_a_seed_make_parts_near():
    noisy = network(layers.ReLU())

    def make() -> tuple[Any, ...]:
        return (
            lambda x: tf.reduce_mean(noisy(x + tf.random.normal(tf.shape(x), dtype=x.dtype))),
            noisy,
            (numbers(BATCH, 6),),
        )

    assert "random numbers" in prepare(make)[1].outputs_differ


def test_further_outputs_are_gathered_added_up_and_averaged():
    model = network(layers.ReLU())

    def function(x: Any, y: Any) -> Any:
        predicted = model(x)
        right = tf.reduce_sum(tf.cast(tf.argmax(predicted, 1) == y, tf.int32))
        loss = keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
        return tf.reduce_mean(loss), {
            "logits": predicted,
            "right": right,
            "worst": tf.reduce_mean(loss),
            "all": loss,
        }

    batch = (numbers(BATCH, 6), np.arange(BATCH) % 3)
    outputs = {"logits": "gather", "right": "sum", "worst": "mean", "all": "gather"}
    for wanted in (None, outputs):
        call, tensors = read_call(batch, {})
        loss = LossFunction(function, [weight_of(v) for v in model.trainable_variables], call, outputs=wanted)
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        whole, parts = (
            GradientStep(loss, recipe).run(tensors, specs) for recipe in (Recipe(), Recipe(micro_batch=4))
        )
        one, two = loss.pack_result(whole.loss, whole.outputs), loss.pack_result(parts.loss, parts.outputs)
        tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one, two)
        assert two[1]["logits"].shape == (BATCH, 3)


def test_a_gan_has_two_functions_that_share_their_networks():
    keras.utils.set_random_seed(1)
    generator, critic = (
        network(layers.BatchNormalization(), outputs=6),
        network(layers.Dropout(0.3), outputs=1),
    )
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    begin = [(v, v.numpy()) for v in (*generator.variables, *critic.variables)]
    begin += [(v, v.numpy()) for layer in critic.layers for v in layer.non_trainable_variables]

    def critic_loss(real: Any, noise: Any) -> Any:
        fake, true = critic(generator(noise, training=True), training=True), critic(real, training=True)
        return entropy(tf.ones_like(true), true) + entropy(tf.zeros_like(fake), fake)

    def generator_loss(noise: Any) -> Any:
        fake = critic(generator(noise, training=True), training=True)
        return entropy(tf.ones_like(fake), fake)

    def train(ours: bool) -> list[Any]:
        for variable, value in begin:
            variable.assign(value)
        steps = []
        for loss, model in ((critic_loss, critic), (generator_loss, generator)):
            variables = model.trainable_variables
            step = memfit.gradients(variables)(loss) if ours else plain_step(loss, variables)
            steps.append((step, keras.optimizers.SGD(0.1), variables))
        keras.utils.set_random_seed(2)
        real, noise = tf.constant(numbers(BATCH, 6)), tf.constant(numbers(BATCH, 6) * 2)
        for _ in range(3):
            for (step, optimizer, variables), batch in zip(steps, ((real, noise), (noise,)), strict=True):
                _, found = step(*batch)
                optimizer.apply(found, variables)
        return [*generator.get_weights(), *critic.get_weights()]

    def plain_step(loss: Loss, variables: Any) -> Any:
        @tf.function
        def step(*batch: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(*batch)
            return value, tape.gradient(value, variables)

        return step

    for one, two in zip(train(True), train(False), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9)


def test_inside_a_function_the_gradients_are_the_same_and_that_it_cannot_be_rolled_back_is_said():
    function, model, batch = dropout()
    loss = memfit.gradients(model.trainable_variables)(function)
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    keras.utils.set_random_seed(5)
    seeds = [variable.numpy() for variable in model.non_trainable_variables]

    @tf.function
    def step(x: Any, y: Any) -> Any:
        value, found = loss(x, y)
        optimizer.apply(found, model.trainable_variables)
        return value, found

    outside, expected = loss(*batch)
    for variable, value in zip(model.non_trainable_variables, seeds, strict=True):
        variable.assign(value)
    inside, found = step(*map(tf.constant, batch))
    assert float(inside) == pytest.approx(float(outside), rel=1e-12)
    for one, two in zip(dense(found), dense(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9)
    assert str(loss.memory.events[0]).startswith("Called inside a tf.function")


def test_a_shorter_last_batch_is_traced_once_for_any_size():
    function, model, (x, y) = dropout()
    traces = []

    @memfit.gradients(model.trainable_variables)
    def loss(x: Any, y: Any) -> Any:
        traces.append(x.shape[0])
        return function(x, y)

    for size in (10, 7, 3, 10, 5):
        loss(x[:size], y[:size])
    assert traces == [10, None]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, w: w * x, "returns a scalar loss"),
        (lambda x, w: "loss", "returns a scalar loss"),
        (lambda x, w: tf.reduce_sum(x), "must depend on the given variables"),
        (lambda x, w: (w.assign(w * 2), tf.reduce_sum(w * x))[1], "but not change them"),
    ],
)
def test_a_function_that_cannot_be_differentiated_is_refused_in_one_sentence(function, message):
    weight = tf.Variable(2.0)
    loss = memfit.gradients([weight])(lambda x: function(x, weight))
    with pytest.raises(memfit.InvalidInput, match=message):
        loss(tf.ones([4]))


def test_variables_are_needed():
    with pytest.raises(memfit.InvalidInput, match="there are none"):
        memfit.gradients([])
    with pytest.raises(memfit.InvalidInput, match="takes Keras or TensorFlow variables"):
        memfit.gradients([1.0])
