"""Keras's private parts of optimizers: their slots and their update loop.

Checked with Keras 3.12.0 and 3.15.1.
"""

from collections.abc import Callable
from functools import partial
from typing import Any


def know_own_variables(optimizer: Any) -> None:
    """Lets an optimizer that came from another process find its variables again: it knows them by `id`."""
    while optimizer is not None:
        optimizer._trainable_variables_indices = {
            optimizer._var_key(variable): index for index, variable in enumerate(_trained(optimizer))
        }
        optimizer = getattr(optimizer, "inner_optimizer", None)


def optimizer_slots(optimizer: Any) -> list[list[Any]]:
    """Returns the lists in which an optimizer keeps a slot for each trainable variable."""
    trained = _trained(optimizer)
    return [
        slots
        for slots in vars(optimizer).values()
        if isinstance(slots, list)
        and len(slots) == len(trained)
        and slots is not trained
        and all(slot is None or hasattr(getattr(slot, "value", None), "handle") for slot in slots)
    ]


def slot_number(optimizer: Any, variable: Any) -> int:
    """Returns the place of a variable in an optimizer's lists."""
    return int(optimizer._get_variable_index(variable))


def is_built_for(optimizer: Any, value: Any) -> bool:
    """Whether an optimizer keeps its state for one of TensorFlow's variables."""
    return any(variable.value is value for variable in _trained(optimizer))


def around_updates(optimizer: Any, around: Callable[[Any, Any, Any, Any], None]) -> Callable[[], None]:
    """Puts a function around an optimizer's updates of its variables; returns what takes it away again.

    Args:
        around: Gets the optimizer's own function, the gradients, the variables and the learning rate.
    """
    own = optimizer._backend_update_step
    object.__setattr__(optimizer, "_backend_update_step", partial(around, own))
    return partial(object.__setattr__, optimizer, "_backend_update_step", own)


def _trained(optimizer: Any) -> list[Any]:
    """The very list of the variables that an optimizer was built for; empty before."""
    return getattr(optimizer, "_trainable_variables", None) or []


def adam_moments(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """Returns the lists of the first and second moments of a built Adam; None stands where there is none."""
    return optimizer._momentums, optimizer._velocities


def adafactor_velocities(optimizer: Any) -> list[Any]:
    """Returns the list of what a built Adafactor divides gradients by the square root of."""
    return optimizer._v


def adafactor_factors(optimizer: Any, place: int) -> tuple[Any, Any]:
    """Returns the row and column factors of an Adafactor's n-th variable."""
    return optimizer._r[place], optimizer._c[place]


def swap_variables(optimizer: Any, variables: list[Any]) -> list[Any]:
    """Lets an optimizer have these variables, and returns the very list that it had.

    That list is not changed: TensorFlow tracks it, and does not save one of which something was taken away.
    """
    before: list[Any] = optimizer._variables
    object.__setattr__(optimizer, "_variables", variables)
    return before


def trained_variables(optimizer: Any) -> list[Any]:
    """Returns the variables that an optimizer was built for, in the order of its slots."""
    return list(_trained(optimizer))
