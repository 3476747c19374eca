"""`%%memfit`: the trainings of a notebook's cell go through memfit, as a script's do under `memfit run`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import keras

from memfit.planning.plan import Plan
from memfit.survival.intercepting import ROUTED, call_memfit, intercept
from memfit.training.run import Run
from memfit.training.running import Runner, current_runner, install_runner, stock_runner


class _CellRunner(Runner):
    """Runs Keras's own `fit`, which another function stands in the place of while the cell runs."""

    def __init__(self, keras_fit: Callable[..., Any]) -> None:
        self._keras_fit = keras_fit
        self.histories: list[keras.callbacks.History] = []

    def fit(
        self, model: keras.Model, arguments: Mapping[str, Any], plan: Plan | None, data_fingerprint: int
    ) -> keras.callbacks.History:
        """Calls Keras's `fit`; calls inside of it are left to Keras."""
        with stock_runner():
            history = self._keras_fit(model, **arguments)
        self.histories.append(history)
        return history


@contextmanager
def trainings_through_memfit(
    memory: str | None = None, allow: str = "near"
) -> Iterator[Callable[[], list[Run]]]:
    """Lets `fit`, `evaluate` and `predict` of every Keras model go through memfit.

    Args:
        memory: What each training may take; None for what is free.
        allow: The farthest that a plan may go.

    Yields:
        What returns the `Run` of every training that has ended.
    """
    runner = _CellRunner(keras.Model.fit)

    def route(name: str, original: Callable[..., Any], model: Any, **arguments: Any) -> Any:
        if current_runner() is not runner:  # inside of a training
            return original(model, **arguments)
        return call_memfit(name, model, arguments, memory=memory, allow=allow)

    with ExitStack() as undo:
        for name in ROUTED:
            undo.callback(intercept(keras.Model, name, partial(route, name)))
        undo.callback(install_runner, None)
        install_runner(runner)
        yield lambda: [history.memory for history in runner.histories if hasattr(history, "memory")]
