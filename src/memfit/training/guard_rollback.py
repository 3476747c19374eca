"""Putting back what a forward pass changes: statistics, seeds and metrics."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


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
            values = [variable.value for variable in self._variables]
            read = tf.function(lambda: [value.read_value() for value in values], autograph=False)
            self._read = read.get_concrete_function()
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

    def _changing(self) -> list[Any]:
        return [*self._model.non_trainable_variables, *self._model.metrics_variables]
