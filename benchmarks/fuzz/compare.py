"""Training a network with stock Keras and with memfit's step, and comparing everything that comes of it."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fuzz.networks import Network, build, data
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.micro_batches import MicroBatches
from memfit.sizes import Size
from memfit.steps import train_step
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import find_choices

STEPS = 4
TOLERANCE = 1e-9
TOLERANCE_MIXED = 1e-4  # where ops compute in float32


class NotTrained(Exception):
    """Stock Keras does not train a network, or not twice to the same weights."""


def find_difference(network: Network) -> str | None:
    """Trains a network both ways in float64; returns what differs, or None."""
    _compute_in("float64")
    try:
        try:
            stock_logs, stock = _train_stock(network)
        except Exception as error:  # whatever Keras has against this network
            raise NotTrained from error
        logs, ours = _train(network)
        tolerance = TOLERANCE_MIXED if network["mixed"] else TOLERANCE
        difference = _find_first(stock_logs, stock, logs, ours, tolerance)
        # In float32 a network may be so ill-conditioned that stock Keras differs as much from itself.
        if difference is not None and network["mixed"]:
            eager_logs, eager = _train_stock(network, eager=True)
            if _find_first(stock_logs, stock, eager_logs, eager, tolerance) is not None:
                raise NotTrained
    finally:
        _compute_in("float32")
        keras.backend.clear_session()
    return difference


def _find_first(
    stock_logs: list[dict[str, Any]],
    stock: list[tuple[str, Any]],
    logs: list[dict[str, Any]],
    ours: list[tuple[str, Any]],
    tolerance: float,
) -> str | None:
    for step, (one, two) in enumerate(zip(stock_logs, logs, strict=True), 1):
        for key in one:
            if not _close(np.asarray(one[key]), np.asarray(two[key]), tolerance):
                return f"{key} of step {step} is {two[key]!r}, stock's is {one[key]!r}"
    for (name, one_value), (_, two_value) in zip(stock, ours, strict=True):
        if not _close(one_value, two_value, tolerance):
            return f"{name} differs by {np.max(np.abs(one_value - two_value)):.2g}"
    return None


def choose_recipe(network: Network, model: keras.Model) -> Recipe:
    """Returns the recipe that was drawn, as far as it is exact for the model."""
    segments = micro_batch = None
    if network["segments"] is not None:
        spec = keras.tree.map_structure(
            lambda x: tf.TensorSpec((network["batch"], *x.shape[1:]), x.dtype), data(network, 1)[0]
        )
        choices = find_choices(model, network["batch"], None if getattr(model, "inputs", None) else spec)
        segments = choices[network["segments"] % len(choices)] if choices else None
    if network["micro_batch"] is not None:
        x, y, _ = data(network, 2)
        job = Job(model, network["batch"], Size(0), Fidelity.EXACT, data=(x, y))
        lever = MicroBatches()
        if lever.why_not(job) is None and lever.fidelity(job) == Fidelity.EXACT:
            micro_batch = network["micro_batch"]
    return Recipe(segments=segments, micro_batch=micro_batch)


def _compute_in(dtype: str) -> None:
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)


def _train_stock(
    network: Network, *, eager: bool = False
) -> tuple[list[dict[str, Any]], list[tuple[str, Any]]]:
    model = build(network)
    model.run_eagerly = eager
    shown: list[dict[str, Any]] = []
    x, y, weights = data(network, STEPS)
    model.fit(
        x,
        y,
        batch_size=network["batch"],
        sample_weight=weights,
        shuffle=False,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: shown.append(dict(logs)))
        ],
    )
    return shown, _state(model)


def _train(network: Network) -> tuple[list[dict[str, Any]], list[tuple[str, Any]]]:
    model = build(network)
    step = train_step.build(model, choose_recipe(network, model))
    x, *others = data(network, STEPS)
    x = tuple(x) if network["side"] else x  # a list would be one tensor
    batches = tf.data.Dataset.from_tensor_slices((x, *(part for part in others if part is not None))).batch(
        network["batch"]
    )
    logs = []
    for metric in model.metrics:
        metric.reset_state()
    for batch in batches:
        shown = step.run(batch, batches.element_spec)
        logs.append({key: np.asarray(value) for key, value in shown.items()})
    if model.optimizer.use_ema:
        model.optimizer.finalize_variable_values(model.trainable_variables)
    return logs, _state(model)


def _state(model: keras.Model) -> list[tuple[str, Any]]:
    return [(v.path, np.asarray(v)) for v in (*model.variables, *model.optimizer.variables)]


def _close(one: Any, two: Any, tolerance: float) -> bool:
    if one.dtype.kind not in "fc":
        return bool(np.array_equal(one, two))
    scale = max(1.0, float(np.max(np.abs(one), initial=0.0)))
    return bool(np.allclose(one, two, rtol=0, atol=tolerance * scale, equal_nan=True))
