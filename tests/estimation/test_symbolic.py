"""What a model says of its inputs and targets without an example."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from memfit.compat.keras_layers import all_layers
from memfit.errors import CannotTell
from memfit.estimation.recording.specs import Leaf, spec_of

# Keras warns that such a build makes no variables of the layers inside.
pytestmark = pytest.mark.filterwarnings("ignore:.build... was called on layer")


class Classifier(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.pooling = layers.Conv2D(4, 3), layers.GlobalAveragePooling2D()
        self.classes = layers.Dense(10)

    def call(self, x: Any) -> Any:
        return self.classes(self.pooling(self.convolution(x)))


def test_floats_of_arrays_have_the_type_that_fit_gives_them_and_those_of_batches_their_own() -> None:
    model = Classifier()
    model.compile("sgd", "mse")
    arrays = (np.zeros((4, 8, 8, 3), "float64"), np.zeros((4, 10), "float16"))
    dataset = tf.data.Dataset.from_tensor_slices(arrays).batch(2)
    assert [leaf.dtype for leaf in spec_of(model, arrays).structure] == ["float32", "float32"]
    assert [leaf.dtype for leaf in spec_of(model, dataset).structure] == ["float64", "float16"]


def test_whole_numbers_of_an_example_are_drawn_as_far_as_it_goes() -> None:
    model = Classifier()
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, labels = np.zeros((4, 8, 8, 3)), np.array([-1, 5, 2, 1])
    _, drawn = spec_of(model, (x, labels)).batch(500)
    assert set(drawn) == set(range(-1, 6))


def test_each_column_of_a_table_has_whole_numbers_of_its_own() -> None:
    """Otherwise a column with a small table of embeddings is given the indices of the largest one."""
    model = Classifier()
    model.compile("sgd", "mse")
    columns = np.array([[1, 0, 900], [3, 2, 5]])
    drawn = spec_of(model, (columns, np.zeros((2, 1)))).batch(500)[0]
    assert (drawn.min(axis=0) >= [1, 0, 5]).all()
    assert drawn.max(axis=0).tolist()[:2] == [3, 2]
    assert drawn.max() > 3


class TwoOutputs(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(3), layers.Dense(2)

    def call(self, x: Any) -> Any:
        return {"a": self.first(x["u"]), "b": self.second(x["v"])}


class Concrete(keras.Model):
    def call(self, x: Any) -> Any:
        return tf.constant(x.numpy())


def compiled(model: keras.Model, loss: Any = "sparse_categorical_crossentropy") -> keras.Model:
    model.compile("sgd", loss)
    return model


def test_a_subclassed_model_says_the_shapes_it_was_built_with_and_stays_as_it_was() -> None:
    model = compiled(Classifier())
    model.build((None, 48, 48, 3))
    before = [layer.built for layer in all_layers(model)]
    assert spec_of(model).structure == (Leaf((48, 48, 3), "float32"), Leaf((), "int32"))
    assert [layer.built for layer in all_layers(model)] == before


def test_a_subclassed_model_says_the_shapes_it_was_called_with() -> None:
    model = compiled(Classifier(), "mse")
    model(np.zeros((2, 8, 8, 3), "float32"))
    assert spec_of(model).structure == (Leaf((8, 8, 3), "float32"), Leaf((10,), "float32"))


def test_named_inputs_and_outputs_are_said_by_name() -> None:
    model = compiled(TwoOutputs(), {"a": "mse", "b": "sparse_categorical_crossentropy"})
    model.build({"u": (None, 4), "v": (None, 5)})
    x, y = spec_of(model).structure
    assert x == {"u": Leaf((4,), "float32"), "v": Leaf((5,), "float32")}
    assert y == {"a": Leaf((3,), "float32"), "b": Leaf((), "int32")}


def test_what_does_not_follow_from_the_build_is_asked_for() -> None:
    with pytest.raises(CannotTell, match="does not say them"):
        spec_of(compiled(Classifier()))
    model = compiled(Concrete())
    model.build((None, 4))
    with pytest.raises(CannotTell, match=r"outputs do not follow .* data=\(x, y\)"):
        spec_of(model)
