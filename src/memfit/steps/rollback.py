"""Putting back what a forward pass changes: statistics, seeds and metrics."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from memfit.compat import keras_training
from memfit.steps.placeholder_buffers import is_small, settle


class Rollback:
    """The variables that a step changes beside weights and optimizer, as they were before it.

    Reading a variable shares its buffer, and a step gives each of these a new one, so that nothing is copied
    and a frozen weight among them costs nothing.

    Args:
        list_changing: Returns TensorFlow's variables that a step may change.
        settles: Whether small ones are moved out of the way of large tensors, where memory is short.
    """

    def __init__(self, list_changing: Callable[[], Sequence[Any]], *, settles: bool = False) -> None:
        self._list_changing, self._settles = list_changing, settles
        self._variables: list[Any] = []
        self._read: Callable[[], list[Any]] | None = None
        self._values: list[Any] = []
        self._own: dict[Any, Any] = {}

    def note(self) -> None:
        """Notes how things are now."""
        if self._read is None:
            self._variables = list(self._list_changing())
            self._read = self._trace_reading(self._variables)
        self._values = []  # which would keep the old buffers from being used again
        self._values = self._read()

    def undo(self) -> None:
        """Puts back what was noted."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)

    @property
    def noted(self) -> list[tuple[Any, Any]]:
        """The variables, each with its value when it was noted."""
        return list(zip(self._variables, self._values, strict=True))

    @property
    def buffers(self) -> list[tf.Variable]:
        """Where small variables are moved to."""
        return [buffer for _, buffer in self._kept().setdefault("buffers", {}).values()]

    def _trace_reading(self, variables: list[Any]) -> Callable[[], list[Any]]:
        """A function that reads all the variables; it takes a while to trace, and is kept for later trainings."""
        kept = self._kept()
        # The function holds the variables, so that none of these numbers can come again.
        key = ("read", self._settles, *map(id, variables))
        if key not in kept:
            small = [variable for variable in variables if self._settles and is_small(variable)]
            buffers = [self._make_buffer(variable) for variable in small]

            def read() -> list[Any]:
                settle(small, buffers)
                return [variable.read_value() for variable in variables]

            kept[key] = tf.function(read, autograph=False).get_concrete_function()
        return kept[key]

    def _make_buffer(self, variable: Any) -> tf.Variable:
        buffers = self._kept().setdefault("buffers", {})
        if id(variable) not in buffers:
            with tf.device(variable.device):
                value = tf.raw_ops.DeepCopy(x=variable.read_value())
                buffer = tf.Variable(value, shape=tf.TensorShape(None), trainable=False)
            buffers[id(variable)] = variable, buffer
        return buffers[id(variable)][1]

    def _kept(self) -> dict[Any, Any]:
        return self._own


class ModelRollback(Rollback):
    """The same for a Keras model, whose metrics make their variables in the first step."""

    def __init__(self, model: keras.Model, *, settles: bool = False) -> None:
        super().__init__(self._list_of_model, settles=settles)
        self._model = model
        self._looks_again = True

    def undo(self) -> None:
        super().undo()
        known = {id(variable) for variable in self._variables}
        for metric in self._model.metrics:
            # What the first step made was not there to be noted.
            if any(id(variable.value) not in known for variable in metric.variables):
                metric.reset_state()
                self._read = None

    def look_again(self) -> None:
        """Looks for the variables anew, once, at the next `note`: a first step makes those of the metrics."""
        if self._looks_again:
            self._looks_again = False
            if {id(variable) for variable in self._list_of_model()} != {id(v) for v in self._variables}:
                self._read = None

    def _kept(self) -> dict[Any, Any]:
        return keras_training.kept_steps(self._model) if self._model.compiled else self._own

    def _list_of_model(self) -> list[Any]:
        model = self._model
        return [variable.value for variable in (*model.non_trainable_variables, *model.metrics_variables)]
