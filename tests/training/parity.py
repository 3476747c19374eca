"""Training one model twice, with stock Keras and with memfit, and comparing everything a user can see."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import memfit
from memfit.planning.fidelity import Fidelity
from memfit.planning.fingerprint import fingerprint
from memfit.planning.plan import Plan
from memfit.steps.change import Change
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import Segments


def levers(
    model: keras.Model,
    batch_size: int,
    micro_batch: int | None = None,
    validation_batch: int | None = None,
    *,
    inputs_on_host: bool = False,
    segments: Segments | None = None,
    changes: tuple[Change, ...] = (),
) -> Plan:
    """A plan for a model with these levers and no prediction."""
    zero = memfit.Size(0)
    return Plan(
        fingerprint(model),
        batch_size,
        memory=zero,
        fidelity=Fidelity.EXACT,
        stock=zero,
        predicted=zero,
        margin=zero,
        time=1.0,
        source="a test",
        recipe=Recipe(micro_batch, segments, inputs_on_host, changes, validation_batch),
    )


class Diary(keras.callbacks.Callback):
    """Notes every call that Keras makes to a callback, with its logs."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[tuple[str, tuple[Any, ...]]] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda *args, **kwargs: self.pages.append((name, (*args, *kwargs.values())))


def train_both_ways(
    make: Callable[[], keras.Model],
    fit: Callable[[], dict[str, Any]],
    *,
    batch_size: int = 16,
    micro_batch: int,
    validation_batch: int | None = None,
) -> tuple[keras.Model, keras.Model, keras.callbacks.History, keras.callbacks.History]:
    """Trains with stock Keras and with memfit; both begin with the same weights and see the same batches."""
    keras.utils.set_random_seed(7)
    stock = make()
    stock_history = stock.fit(**{"verbose": 0, "shuffle": False, **fit()})
    keras.utils.set_random_seed(7)
    fitted = make()
    plan = levers(fitted, batch_size, micro_batch, validation_batch)
    history = memfit.fit(fitted, **{"verbose": 0, "shuffle": False, **fit()}, plan=plan)
    return stock, fitted, stock_history, history


def assert_same_training(
    make: Callable[[], keras.Model],
    fit: Callable[[], dict[str, Any]],
    *,
    updates: int = 20,
    rtol: float = 2e-5,
    atol: float = 2e-6,
    **options: Any,
) -> tuple[keras.Model, keras.callbacks.History]:
    """Asserts that weights, optimizer state and history agree to float32 rounding after the same updates."""
    stock, fitted, stock_history, history = train_both_ways(make, fit, **options)
    assert int(fitted.optimizer.iterations) == int(stock.optimizer.iterations) == updates
    before = [w.numpy() for w in _begun(make).trainable_variables]
    after = [w.numpy() for w in fitted.trainable_variables]
    if before and len(before) == len(after):
        assert any(not np.allclose(a, b, atol=1e-4) for a, b in zip(before, after, strict=True)), (
            "nothing learned"
        )
    pairs = [*zip(stock.variables, fitted.variables, strict=True)]
    pairs += zip(stock.optimizer.variables, fitted.optimizer.variables, strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=rtol, atol=atol, err_msg=a.path)
    assert list(history.history) == list(stock_history.history)
    for name, values in stock_history.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=rtol, atol=atol, err_msg=name)
    assert history.epoch == stock_history.epoch
    return fitted, history


def _begun(make: Callable[[], keras.Model]) -> keras.Model:
    keras.utils.set_random_seed(7)
    return make()
