"""Variables under one face, Keras's or TensorFlow's own."""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from memfit.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Weight:
    """A variable under one face, Keras's or TensorFlow's own.

    Attributes:
        path: Its name.
        value: TensorFlow's variable.
    """

    path: str
    value: Any

    @property
    def shape(self) -> Any:
        """Its shape."""
        return self.value.shape

    @property
    def dtype(self) -> str:
        """The name of its type."""
        return str(self.value.dtype.name)

    @property
    def trainable(self) -> bool:
        """Whether TensorFlow takes it for one that is trained."""
        return bool(self.value.trainable)


def weight_of(variable: Any) -> Weight:
    """Returns a variable of Keras or TensorFlow as a weight.

    Raises:
        InvalidInput: If it is no variable.
    """
    if isinstance(variable, keras.Variable):
        return Weight(variable.path, variable.value)
    if isinstance(variable, tf.Variable):
        return Weight(variable.name.partition(":")[0], variable)
    raise InvalidInput(
        "memfit.gradients takes Keras or TensorFlow variables", received=type(variable).__name__
    )
