"""What a further micro-batch costs is measured: much in a loop over time, little in a network of large ops."""

from dataclasses import replace
from typing import Any

import keras

import memfit
from memfit.planning.levers.micro_batches import MicroBatches
from memfit.planning.recordings import Recordings
from memfit.steps.recipe import Recipe
from planning.figures import job_of


def compiled(*layers: Any) -> keras.Model:
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def predict_cost(model: keras.Model) -> float:
    """The predicted time of three further parts, as a part of a stock step."""
    estimate = replace(memfit.estimate(model, 64), nearby=None)
    facts = Recordings(job_of(model, 2**40, batch_size=64), lambda recipe, batch_size: estimate)
    return MicroBatches().predict_cost(facts, Recipe(micro_batch=16), 64)


def test_a_part_of_a_loop_over_time_costs_most_of_a_step() -> None:
    over_time = compiled(keras.Input((60, 8)), keras.layers.LSTM(16))
    assert predict_cost(over_time) > 1


def test_a_part_of_large_ops_costs_little() -> None:
    large = compiled(
        keras.Input((64, 64, 16)),
        keras.layers.Conv2D(64, 3),
        keras.layers.Conv2D(64, 3),
        keras.layers.GlobalMaxPooling2D(),
    )
    assert predict_cost(large) < 0.3
