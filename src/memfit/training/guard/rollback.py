"""Putting back what a forward pass changes: statistics, seeds and metrics."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from memfit.training import private_apis


class Rollback:
    """The variables that a step changes beside weights and optimizer, as they were before it.

    Reading a variable shares its buffer, and a step gives each of these a new one, so that nothing is copied
    and a frozen weight among them costs nothing.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._variables: list[Any] = []
        self._read: Callable[[], list[Any]] | None = None
        self._values: list[Any] = []

    def note(self) -> None:
        """Notes how things are now."""
        if self._read is None:
            self._variables = self._changing()
            self._read = self._reading([variable.value for variable in self._variables])
        self._values = self._read()

    def undo(self) -> None:
        """Puts back what was noted."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)
        known = {id(variable) for variable in self._variables}
        for metric in self._model.metrics:
            # What the first step made was not there to be noted.
            if any(id(variable) not in known for variable in metric.variables):
                metric.reset_state()
                self.forget()

    def forget(self) -> None:
        """Looks for the variables anew at the next note: a first step makes those of the metrics."""
        self._read, self._values = None, []

    def _reading(self, variables: list[Any]) -> Callable[[], list[Any]]:
        """A function that reads all the variables; it takes a while to trace, and is kept for later trainings."""
        kept = private_apis.kept_steps(self._model) if self._model.compiled else {}
        key = ("read", *map(id, variables))  # the function holds them, so that none of these can come again
        if key not in kept:
            read = tf.function(lambda: [variable.read_value() for variable in variables], autograph=False)
            kept[key] = read.get_concrete_function()
        reading: Callable[[], list[Any]] = kept[key]
        return reading

    def _changing(self) -> list[Any]:
        return [*self._model.non_trainable_variables, *self._model.metrics_variables]
