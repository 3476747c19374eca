"""An optimizer that keeps less for the length of a training, and is itself again afterwards.

The optimizer that the user compiled stays the same object of the same class, with its settings, its schedule,
its counter and its learning rate: callbacks that hold it work as before. Only what it keeps of each variable is
taken over in another form, and its update reads that. The variables of its slots stay, too, without their values,
because functions that were traced before know them. What a callback saves meanwhile is what the optimizer itself
would save.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from memfit.compat.keras_optimizers import (
    adafactor_factors,
    adafactor_velocities,
    adam_moments,
    swap_variables,
    trained_variables,
)
from memfit.compat.keras_training import has_strategy
from memfit.errors import InvalidInput
from memfit.estimation.optimizers import is_alone
from memfit.optimizers.adafactor import is_factored, update_without_velocity, velocity_of
from memfit.optimizers.adam8bit import LISTS, add_codes, dequantise, is_large, quantise, update_in_8_bits
from memfit.steps.change import Change
from memfit.steps.slots import assign_any, build_without, innermost, let_go, saved_with_wrappers

_LOG = logging.getLogger("memfit")
_ATTRIBUTE = "memfit_lighter_state"
_METHODS = ("update_step", "save_own_variables", "load_own_variables")


@dataclass(frozen=True)
class LighterState(Change):
    """Lets the model's optimizer keep less while it trains.

    Attributes:
        form: "8-bit moments" for Adam and AdamW, "no velocity" for Adafactor.
    """

    kind: ClassVar[str] = "optimizer state"
    form: str

    def applied(self, model: Any) -> AbstractContextManager[None]:
        """Takes the state over for a while."""
        return lighten(model, self.form)

    def __str__(self) -> str:
        return self.form


def why_not_lighter(model: Any, form: str) -> str | None:
    """Says why a model's optimizer cannot keep its state in a form, or None where it can."""
    optimizer = innermost(model.optimizer)
    state = _FORMS[form]
    if type(optimizer) not in state.classes:
        return f"works only with Keras's {' and '.join(cls.__name__ for cls in state.classes)}"
    if getattr(optimizer, "amsgrad", False):
        return "AMSGrad keeps the largest second moments, which 8 bits would not hold"
    if has_strategy(model):
        return "a distribution strategy keeps copies of the optimizer's state"
    if not is_alone(model):
        return "its train_step has more than one optimizer"
    if not model.built:
        return "its weights are not built yet"
    if not any(map(state.takes, model.trainable_variables)):
        return "it has no variable that is large enough"
    return None


@contextmanager
def lighten(model: Any, form: str) -> Iterator[None]:
    """Lets a model's optimizer keep its state in a lighter form, and gives it its own back afterwards.

    Where there is no memory to give it back, what is left stays as it is, and goes on to be used.

    Raises:
        InvalidInput: If the form is unknown, or not for this optimizer.
    """
    if form not in _FORMS:
        raise InvalidInput(f"An optimizer's lighter state is one of {', '.join(_FORMS)}", received=form)
    if (reason := why_not_lighter(model, form)) is not None:
        raise InvalidInput(f"This model's optimizer cannot train with {form}: {reason}")
    optimizer = innermost(model.optimizer)
    state = vars(optimizer).get(_ATTRIBUTE) or _FORMS[form](optimizer)
    model.train_function = None  # what Keras had traced before updates the optimizer's own state
    try:
        state.take_over(model.trainable_variables)
        with saved_with_wrappers(model.optimizer):
            yield
    finally:
        state.hand_back()
        model.train_function = None


class _State(ABC):
    """What an optimizer keeps, in a lighter form.

    Args:
        optimizer: Built or not.
    """

    classes: ClassVar[tuple[type, ...]]
    slots: ClassVar[tuple[str, ...]]  # by the names that Keras's `build` gives them

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._own: list[Any] = []  # the optimizer's variables as it would save them: its own list
        self._light: dict[int, list[Any]] = {}  # slots that have no values now, by the variable's place

    @staticmethod
    @abstractmethod
    def takes(variable: Any) -> bool:
        """Whether the state of a variable is kept otherwise."""

    @abstractmethod
    def _slots_at(self, place: int) -> list[Any]:
        """Returns the optimizer's own slots of the n-th variable that are taken over."""

    @abstractmethod
    def _read(self, place: int) -> Sequence[Any]:
        """Returns what those slots would hold."""

    @abstractmethod
    def _write(self, place: int, values: Sequence[Any]) -> None:
        """Keeps what those slots hold."""

    @abstractmethod
    def _update(self, *args: Any) -> None:
        """Updates a variable: the optimizer's `update_step`."""

    def _make(self, variables: Sequence[Any], made: Callable[[int], None]) -> None:
        """Makes the variables of the lighter form; calls `made` with each place that is taken over."""
        for place, variable in enumerate(variables):
            if self.takes(variable):
                made(place)

    def _list_made(self) -> list[Any]:
        """Returns the variables of the lighter form."""
        return []

    def _free(self, place: int) -> None:  # noqa: B027  there may be nothing
        """Lets go of the n-th variable's state in the lighter form."""

    def _end(self) -> None:  # noqa: B027  there may be nothing
        """Lets go of what is left when everything was given back."""

    def take_over(self, variables: Sequence[Any]) -> None:
        """Puts the optimizer's state into the lighter form, variable by variable."""
        optimizer = self._optimizer
        if self._light:  # left from a training after which there was no memory to give it back
            return
        fresh = not optimizer.built
        if fresh:
            build_without(
                optimizer, variables, lambda variable, name: name in self.slots and self.takes(variable)
            )
        self._own = swap_variables(optimizer, [])
        self._make(trained_variables(optimizer), partial(self._take, fresh=fresh))
        self._tell_variables()
        for name, method in zip(_METHODS, (self._update, self._save, self._load), strict=True):
            object.__setattr__(optimizer, name, method)
        object.__setattr__(optimizer, _ATTRIBUTE, self)

    def hand_back(self) -> None:
        """Gives the optimizer its own state back, variable by variable, as far as there is memory."""
        optimizer = self._optimizer
        for place, slots in list(self._light.items()):
            try:
                for slot, value in zip(slots, self._read(place), strict=True):
                    assign_any(slot, value)
            except tf.errors.ResourceExhaustedError:
                for slot in slots:
                    let_go(slot)
                _LOG.warning(
                    "Not enough memory to restore the float32 state of %s: it continues with %s.",
                    optimizer.name,
                    next(form for form, state in _FORMS.items() if isinstance(self, state)),
                )
                self._tell_variables()
                return
            del self._light[place]
            self._free(place)
        swap_variables(optimizer, self._own)
        for name in (*_METHODS, _ATTRIBUTE):
            if name in vars(optimizer):
                object.__delattr__(optimizer, name)
        self._end()

    def _take(self, place: int, fresh: bool) -> None:
        slots = self._slots_at(place)
        if not fresh:
            self._write(place, slots)
        for slot in slots:
            let_go(slot)
        self._light[place] = slots

    def _tell_variables(self) -> None:
        """Lets the optimizer's `variables` be those that hold something."""
        empty = {id(slot) for slots in self._light.values() for slot in slots}
        kept = [variable for variable in self._own if id(variable) not in empty]
        swap_variables(self._optimizer, [*kept, *self._list_made()])

    def _save(self, store: Any) -> None:
        """Saves what the optimizer itself would save."""
        values = {
            id(slot): value
            for place, slots in self._light.items()
            for slot, value in zip(slots, map(np.asarray, self._read(place)), strict=True)
        }
        for number, variable in enumerate(self._own):
            store[str(number)] = values[id(variable)] if id(variable) in values else variable.numpy()

    def _load(self, store: Any) -> None:
        """Loads what the optimizer itself would have saved."""
        numbers = {id(variable): number for number, variable in enumerate(self._own)}
        empty = set()
        for place, slots in self._light.items():
            self._write(place, [tf.constant(store[str(numbers[id(slot)])]) for slot in slots])
            empty |= {id(slot) for slot in slots}
        for variable in self._own:
            if id(variable) not in empty:
                variable.assign(store[str(numbers[id(variable)])])


class _EightBitMoments(_State):
    classes = (keras.optimizers.Adam, keras.optimizers.AdamW)
    slots = ("momentum", "velocity")

    @staticmethod
    def takes(variable: Any) -> bool:
        return is_large(variable)

    def _slots_at(self, place: int) -> list[Any]:
        return [moments[place] for moments in adam_moments(self._optimizer)]

    def _make(self, variables: Sequence[Any], made: Callable[[int], None]) -> None:
        add_codes(self._optimizer, variables, partial(keras.Variable, "zeros", trainable=False), made)

    def _read(self, place: int) -> Sequence[Any]:
        slots = self._light[place]
        moments = dequantise(self._optimizer, place, tuple(slots[0].shape))
        kind = tf.as_dtype(slots[0].dtype).as_numpy_dtype
        return [moment.astype(kind, copy=False) for moment in moments]

    def _write(self, place: int, values: Sequence[Any]) -> None:
        momentum, velocity = map(tf.convert_to_tensor, values)
        quantise(self._optimizer, place, momentum, velocity)

    def _update(self, *args: Any) -> None:
        update_in_8_bits(self._optimizer, *args)

    def _list_made(self) -> list[Any]:
        return [getattr(self._optimizer, name)[place] for place in sorted(self._light) for name in LISTS]

    def _free(self, place: int) -> None:
        for name in LISTS:
            slots = getattr(self._optimizer, name)
            let_go(slots[place])  # traced functions may hold it for a while
            slots[place] = None

    def _end(self) -> None:
        for name in LISTS:
            if name in vars(self._optimizer):
                object.__delattr__(self._optimizer, name)


class _NoVelocity(_State):
    classes = (keras.optimizers.Adafactor,)
    slots = ("velocity",)

    @staticmethod
    def takes(variable: Any) -> bool:
        return is_factored(variable) and not getattr(variable, "overwrite_with_gradient", False)

    def _slots_at(self, place: int) -> list[Any]:
        return [adafactor_velocities(self._optimizer)[place]]

    def _read(self, place: int) -> Sequence[Any]:
        return [velocity_of(*adafactor_factors(self._optimizer, place))]

    def _write(self, place: int, values: Sequence[Any]) -> None:
        """Keeps nothing: the next update computes it from the factors."""

    def _update(self, *args: Any) -> None:
        update_without_velocity(self._optimizer, *args)


_FORMS: dict[str, type[_State]] = {"8-bit moments": _EightBitMoments, "no velocity": _NoVelocity}
