"""A model arrives in another process as it was sent, but for the numbers in its weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from memfit.errors import CannotTell
from memfit.estimation.recording.sending import packed, unpacked

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
