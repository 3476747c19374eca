"""A model arrives in another process as it was sent, but for the numbers in its weights."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from memfit import isolated
from memfit.compat.keras_layers import all_layers
from memfit.errors import CannotTell
from memfit.estimation.recording.sending import made_in_order, packed, unpacked

WORDS = ["a good film", "a bad film"]


def test_vocabularies_are_sent() -> None:
    text = keras.layers.TextVectorization(output_sequence_length=4)
    text.adapt(WORDS)
    lookup = keras.layers.StringLookup(vocabulary=["x", "y"], output_mode="one_hot")
    empty = keras.layers.IntegerLookup()
    model = keras.Sequential([text, keras.layers.Embedding(9, 2)])
    model.lookup, model.empty = lookup, empty
    received, _ = unpacked(packed(model))
    words = tf.constant([*WORDS, "a new word"])
    np.testing.assert_array_equal(tf.function(received.layers[0])(words), text(words))
    np.testing.assert_array_equal(tf.function(received.lookup)(tf.constant(["y", "z"])), lookup(["y", "z"]))
    assert int(received.empty.lookup_table.size()) == 0


def test_a_model_that_holds_a_tensor_of_a_graph_is_told_before_it_is_sent() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    @tf.function
    def keep(x: tf.Tensor) -> tf.Tensor:
        model.kept = [x]  # as a custom loss may keep its last value
        return x

    keep(tf.ones(2))
    with pytest.raises(CannotTell, match="a tensor of a graph"):
        packed(model)


class _Attention(keras.Model):
    """Makes layers, and so their names, only when it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(1, 2, dropout=0.1)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.attention(x, x)


def _name_dropouts(model: keras.Model) -> list[str]:
    model(np.zeros((1, 2, 2), "float32"))
    return [layer.name for layer in all_layers(model) if isinstance(layer, keras.layers.Dropout)]


def _receive(payload: bytes) -> list[str]:
    return _name_dropouts(unpacked(payload)[0])


def test_layers_made_by_a_build_have_the_same_names_in_the_other_process() -> None:
    keras.layers.Dropout(0.1)
    model = _Attention()
    there = isolated(_receive, packed(model))
    assert there == _name_dropouts(model)


def test_the_order_in_which_variables_were_made_is_sent() -> None:
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dropout(0.1)(keras.layers.Dense(1)(inputs)))
    assert [v.name for v in model.variables] == ["kernel", "bias", "seed_generator_state"]
    received, _ = unpacked(packed(model))
    received.add_weight(name="here")
    names = [v.name for v in made_in_order(received.variables)]
    assert names == ["seed_generator_state", "kernel", "bias", "here"]


class _Settings(dict[str, int]):
    """Items that are attributes, as in many configurations."""

    __getattr__ = dict.__getitem__


class _Pair(tuple[int, int]):
    def __getattr__(self, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[0]


def test_a_dict_whose_items_are_its_attributes_is_sent() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.settings = SimpleNamespace(settings=_Settings(units=3), pair=_Pair((1, 2)))
    received, _ = unpacked(packed(model))
    assert received.settings.settings == {"units": 3}
    assert received.settings.settings.units == 3
    assert received.settings.pair == (1, 2)
