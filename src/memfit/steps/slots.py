"""The slots of an optimizer: variables that stay while their values come and go."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.compat.attributes import overridden


def innermost(optimizer: Any) -> Any:
    """Returns the optimizer that loss scaling is wrapped around, or itself."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


@contextmanager
def saved_with_wrappers(optimizer: Any) -> Iterator[None]:
    """Lets loss scaling save the state of the optimizer inside as that one saves it itself, for a while."""
    wrapper, inner = optimizer, innermost(optimizer)
    inside = {id(variable) for variable in inner.variables}
    with ExitStack() as stack:
        while wrapper is not inner:
            own = [variable for variable in wrapper.variables if id(variable) not in inside]
            save, load = partial(_save_both, own, inner), partial(_load_both, own, inner)
            stack.enter_context(overridden(wrapper, save_own_variables=save, load_own_variables=load))
            wrapper = wrapper.inner_optimizer
        yield


def _save_both(own: Sequence[Any], inner: Any, store: Any) -> None:
    kept: dict[str, Any] = {}
    inner.save_own_variables(kept)
    values = [variable.numpy() for variable in own] + [kept[str(number)] for number in range(len(kept))]
    for number, value in enumerate(values):
        store[str(number)] = value


def _load_both(own: Sequence[Any], inner: Any, store: Any) -> None:
    values = [store[str(number)] for number in range(len(store.keys()))]
    for variable, value in zip(own, values, strict=False):
        variable.assign(value)
    inner.load_own_variables({str(number): value for number, value in enumerate(values[len(own) :])})


def build_without(
    optimizer: Any, variables: Sequence[Any], left_out: Callable[[Any, str | None], bool]
) -> None:
    """Builds an optimizer; zeros that are left out are gone before the next ones are made.

    Args:
        left_out: From a trained variable and a slot's name to whether that slot gets no values.
    """
    add = optimizer.add_variable_from_reference

    def add_empty(reference_variable: Any, name: str | None = None, **kwargs: Any) -> Any:
        made = add(reference_variable, name=name, **kwargs)
        if left_out(reference_variable, name):
            let_go(made)
        return made

    with overridden(optimizer, add_variable_from_reference=add_empty):
        optimizer.build(variables)


def let_go(variable: Any) -> None:
    """Frees the buffer of a Keras variable that stays."""
    assign_any(variable, tf.zeros([0], variable.dtype))


def assign_any(variable: Any, value: Any) -> None:
    """Gives a Keras variable a value of any shape."""
    with tf.device(variable.value.device):
        if isinstance(value, np.ndarray):
            # Converting an array does not check that there is memory, and ends the process; this does.
            room = [tf.raw_ops.Empty(shape=value.shape, dtype=value.dtype) for _ in range(2)]
            del room
            # A copy, because TensorFlow may take over the array's own memory.
            value = tf.raw_ops.DeepCopy(x=tf.convert_to_tensor(value))
        tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value, validate_shape=False)
