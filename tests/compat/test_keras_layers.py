"""Canaries of what memfit uses of Keras's layers beside its public face."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from compat.canaries import canary
from memfit.compat import keras_layers


@pytest.fixture(scope="module")
def nested() -> keras.Model:
    inside = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="deep")], name="inside")
    return keras.Sequential([keras.Input((4,)), inside, keras.layers.Dense(2, name="last")])


@canary("keras_layers.all_layers", "Layer._flatten_layers", of="keras")
def test_all_layers_are_found_the_model_first_and_nested_ones_too(nested):
    layers = keras_layers.all_layers(nested)
    assert layers[0] is nested
    assert {"inside", "deep", "last"} <= {layer.name for layer in layers}


@canary(
    "keras_layers.SEED_ATTRIBUTES",
    "RandomInitializer._init_seed",
    "SeedGenerator._initial_seed",
    of="keras",
)
def test_seeds_are_kept_where_memfit_leaves_them_out():
    holders = [
        keras.layers.Dropout(0.5, seed=7),
        keras.initializers.HeNormal(7),
        keras.random.SeedGenerator(7),
    ]
    for holder in holders:
        kept = {name for name, value in vars(holder).items() if type(value) is int and value == 7}
        assert kept
        assert kept <= set(keras_layers.SEED_ATTRIBUTES)


@canary(
    "keras_layers.NUMBER_ATTRIBUTES", "Optimizer._trainable_variables_indices", "Function._nodes", of="keras"
)
def test_objects_are_known_by_numbers_where_memfit_leaves_them_out(nested):
    names = {*vars(keras.optimizers.SGD()), *vars(keras.Model(nested.inputs, nested.outputs))}
    assert set(keras_layers.NUMBER_ATTRIBUTES) <= names


@canary("keras_layers.layers_inside", "Layer._layers", of="keras")
def test_layers_inside_are_the_direct_ones(nested):
    names = {layer.name for layer in keras_layers.layers_inside(nested)}
    assert {"inside", "last"} <= names
    assert "deep" not in names


@canary("keras_layers.is_keras_object", "keras_saveable.KerasSaveable", of="keras")
def test_layers_optimizers_metrics_and_losses_are_keras_objects():
    objects = [keras.layers.Dense(1), keras.optimizers.SGD(), keras.metrics.Mean(), keras.Variable(1.0)]
    assert [keras_layers.is_keras_object(obj) for obj in objects] == [True, True, True, False]


@canary(
    "keras_layers.is_tracked_container",
    "tracking.TrackedDict",
    "tracking.TrackedList",
    "tracking.TrackedSet",
    of="keras",
)
def test_lists_dicts_and_sets_in_a_layer_are_tracked_containers():
    layer = keras.layers.Layer()
    layer.parts, layer.by_name, layer.kinds = [keras.layers.Dense(1)], {"a": keras.layers.Dense(1)}, {1}
    held = (layer.parts, layer.by_name, layer.kinds)
    assert all(keras_layers.is_tracked_container(container) for container in held)
    assert not keras_layers.is_tracked_container([1])


class Regularised(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x))
        return x


@canary("keras_layers.added_losses", "Layer._losses", of="keras")
def test_losses_that_a_layer_added_are_listed():
    layer = Regularised()
    layer(tf.ones([2]))
    assert [(owner, place, float(loss)) for owner, place, loss in keras_layers.added_losses(layer)] == [
        (layer, 0, 2.0)
    ]


@canary("keras_layers.set_added_loss", "Layer._losses", of="keras")
def test_a_loss_that_a_layer_added_is_replaced():
    layer = Regularised()
    layer(tf.ones([2]))
    keras_layers.set_added_loss(layer, 0, tf.constant(5.0))
    assert float(layer.losses[0]) == 5.0


@canary("keras_layers.forget_losses", "Layer._clear_losses", of="keras")
def test_losses_of_a_call_are_forgotten():
    layer = Regularised()
    layer(tf.ones([2]))
    keras_layers.forget_losses(layer)
    assert keras_layers.added_losses(layer) == []


@canary("keras_layers.input_structure", "Functional._inputs_struct", of="keras")
def test_the_structure_of_a_models_inputs_keeps_its_names():
    inputs = {name: keras.Input((2,), name=name) for name in ("a", "b")}
    model = keras.Model(inputs, keras.layers.Add()(list(inputs.values())))
    assert set(keras_layers.input_structure(model)) == {"a", "b"}
    assert keras_layers.input_structure(keras.Model()) is None


@canary("keras_layers.mask_of", "keras.src.backend.get_keras_mask", of="keras")
def test_a_mask_is_read_from_its_tensor():
    masked = keras.layers.Masking()(tf.constant([[[0.0], [1.0]]]))
    assert keras_layers.mask_of(masked).numpy().tolist() == [[False, True]]


@canary("keras_layers.copy_mask", "keras.src.backend.set_keras_mask", of="keras")
def test_a_mask_is_given_to_another_tensor():
    masked, other = keras.layers.Masking()(tf.constant([[[0.0], [1.0]]])), tf.ones([1, 2, 1])
    keras_layers.copy_mask(masked, other)
    assert keras_layers.mask_of(other) is keras_layers.mask_of(masked)


@canary("keras_layers.logits_of", "tensor._keras_logits", of="keras")
def test_the_logits_of_probabilities_are_known_where_keras_knows_them():
    logits = tf.constant([[1.0, 2.0]])
    assert keras_layers.logits_of(keras.activations.softmax(logits)) is logits
    assert keras_layers.logits_of(keras.activations.relu(logits)) is None


@canary("keras_layers.set_logits", "tensor._keras_logits", of="keras")
def test_a_loss_takes_the_logits_that_it_is_told_of():
    probabilities = tf.constant([[1.0, 0.0]])
    keras_layers.set_logits(probabilities, tf.constant([[20.0, 0.0]]))
    loss = keras.losses.sparse_categorical_crossentropy(tf.constant([1]), probabilities)
    assert float(loss[0]) == pytest.approx(20.0)


@canary("keras_layers.own_seed_generators", "Layer._seed_generators", of="keras")
def test_the_generators_of_nested_layers_are_found_once():
    dropout = keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.Sequential([dropout]), keras.layers.Dense(2), dropout])
    assert keras_layers.own_seed_generators(model) == [dropout.seed_generator]


@canary("keras_layers.seeded", "Layer._seed_generators", "SeedGenerator.next", of="keras")
def test_a_layer_draws_from_the_seed_it_is_given():
    layer = keras.Sequential([keras.layers.Dropout(0.5)])

    def draw(seed):
        with keras_layers.seeded(layer, tf.constant(seed)):
            return layer(tf.ones([64]), training=True).numpy()

    np.testing.assert_array_equal(draw([1, 2]), draw([1, 2]))
    assert (draw([1, 2]) != draw([3, 4])).any()
    assert (layer(tf.ones([64]), training=True) != layer(tf.ones([64]), training=True)).numpy().any()


class WithoutTraining(keras.Model):
    def call(self, x):
        return x


@canary("keras_layers.forward", "Layer._call_has_training_arg", "Variable._value", of="keras")
def test_training_is_passed_to_a_call_that_takes_it_and_recurrent_weights_are_read_once():
    dropout = keras.Sequential([keras.layers.Dropout(0.9, seed=1)])
    assert (keras_layers.forward(dropout, tf.ones([64]), training=True).numpy() == 0).any()
    assert (keras_layers.forward(WithoutTraining(), tf.ones([4]), training=True).numpy() == 1).all()
    recurrent = keras.Sequential([keras.Input((3, 2)), keras.layers.SimpleRNN(2)])

    def reads(call, **options):
        graph = tf.function(call, jit_compile=True).get_concrete_function(tf.ones([1, 3, 2])).graph
        inside = graph.as_graph_def().library.function
        return sum(node.op == "ReadVariableOp" for function in inside for node in function.node_def)

    assert reads(lambda x: recurrent(x, training=True)) > 0
    assert reads(lambda x: keras_layers.forward(recurrent, x, training=True)) == 0
    assert all(isinstance(weight.value, tf.Variable) for weight in recurrent.weights)


@canary("keras_layers.output_layers", "KerasTensor._keras_history", of="keras")
def test_the_layer_of_an_output_is_found(nested):
    assert [layer.name for layer in keras_layers.output_layers(nested)] == ["last"]


@canary(
    "keras_layers.why_not_xla",
    "keras.src.trainers.trainer.model_supports_jit",
    "keras.src.backend.tensorflow.rnn._do_lstm_arguments_support_cudnn",
    of="keras",
)
def test_a_layer_that_keeps_xla_away_is_named(nested):
    assert keras_layers.why_not_xla(nested) is None
    lstm = keras.Sequential([keras.Input((3, 2)), keras.layers.LSTM(2, name="recurrent")])
    assert "recurrent runs on cuDNN" in keras_layers.why_not_xla(lstm)


@canary("keras_layers.loops", "keras.src.backend.tensorflow.rnn._do_gru_arguments_support_cudnn", of="keras")
def test_recurrent_layers_that_do_not_run_on_cudnn_loop():
    layers = [
        keras.layers.GRU(2, name="cudnn", return_sequences=True),
        keras.layers.GRU(2, name="loop", activation="relu"),
    ]
    assert keras_layers.loops(keras.Sequential([keras.Input((3, 2)), *layers])) == ["loop"]


@canary("keras_layers.layers_called", "Layer.__call__", of="keras")
def test_called_layers_are_seen(nested):
    with keras_layers.layers_called() as called:
        nested(np.ones((2, 4)))
    nested(np.ones((2, 4)))
    assert [layer.name for layer in called[1:]] == ["inside", "deep", "last"]


@canary("keras_layers.statistics_left_alone", "BatchNormalization.call", of="keras")
def test_statistics_can_be_left_alone():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 4))
    before = layer.moving_mean.numpy()
    with keras_layers.statistics_left_alone():
        layer(np.ones((2, 4)), training=True)
    np.testing.assert_array_equal(layer.moving_mean.numpy(), before)
    layer(np.ones((2, 4)), training=True)
    assert not np.array_equal(layer.moving_mean.numpy(), before)


@canary("keras_layers.moments_replaced", "BatchNormalization._moments", "_reduction_axes", of="keras")
def test_moments_can_be_computed_otherwise():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 4))
    seen = []

    def moments(inputs, mask, axes):
        seen.append((tuple(inputs.shape), mask, axes))
        return keras.ops.zeros(4), keras.ops.ones(4)

    with keras_layers.moments_replaced(layer, moments):
        layer(np.ones((2, 4)), training=True)
    layer(np.ones((2, 4)), training=True)
    assert seen == [((2, 4), None, [0])]


@canary("keras_layers.layer_states", "Layer._non_trainable_variables", of="keras")
def test_frozen_weights_are_told_from_statistics():
    dropout = keras.layers.Dropout(0.5)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization(), dropout]
    )
    model.trainable = False
    states = keras_layers.layer_states(model)
    assert [variable.name for variable in states[:2]] == ["moving_mean", "moving_variance"]
    assert states[2:] == [dropout.seed_generator.state]


@canary("keras_layers.functional_of", "Functional", "Sequential._functional", of="keras")
def test_the_graph_of_a_functional_and_of_a_sequential_model_is_found(nested):
    functional = keras.Model(nested.inputs, nested.outputs)
    assert keras_layers.functional_of(functional) is functional
    assert keras_layers.functional_of(nested).inputs
    assert keras_layers.functional_of(nested.layers[-1]) is None


@canary("keras_layers.output_structure", "Functional._outputs_struct", of="keras")
def test_outputs_have_the_structure_that_they_were_given():
    x = keras.Input((4,))
    assert set(keras_layers.output_structure(keras.Model(x, {"one": x + 1, "two": x}))) == {"one", "two"}


@canary("keras_layers.run_through", "Functional._run_through_graph", of="keras")
def test_a_model_and_those_inside_it_are_gone_through_layer_by_layer(nested):
    visited = []

    def visit(operation, args, kwargs):
        visited.append(operation.name)
        return args[0] + 1

    assert keras_layers.run_through(nested, 5, visit) == 7
    assert visited == ["deep", "last"]


@canary("keras_layers.call_to_infer", "Layer._call_has_training_arg", of="keras")
def test_a_layer_is_called_as_by_a_model_that_predicts():
    x = np.ones((2, 3), "float32")
    for layer in (keras.layers.Dropout(0.5), keras.layers.Identity()):
        assert np.array_equal(keras_layers.call_to_infer(layer, (x,), {}), x)


@canary("keras_layers.operation_name", "keras.src.ops", of="keras")
def test_operations_are_told_from_layers(nested):
    x = keras.Input((4,))
    model = keras.Model(x, keras.ops.relu(x + 1))
    names = [keras_layers.operation_name(operation) for operation in model.operations]
    assert names == ["", "Add", "Relu"]
