"""An optimizer's state dealt out to ranks (ZeRO stage 1): each keeps and updates some variables' slots.

All ranks have the same summed gradients, so a rank can update its variables by itself and send their new values to
the others: the same bits as if all had updated all. The optimizer stays the same object, its other slots are empty.
No rank has all of the state until it is gathered at the end of an epoch: it can be saved, and resumed from, there.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from memfit.compat.keras_optimizers import around_updates, optimizer_slots, swap_variables, trained_variables
from memfit.errors import InvalidInput
from memfit.estimation.optimizers import is_alone
from memfit.steps.bits import as_integers, from_integers, integers_for
from memfit.steps.change import Change
from memfit.steps.gradients import pack_up, sum_pack
from memfit.steps.share import Communicator, current_ranks
from memfit.steps.slots import assign_any, build_without, innermost, let_go, saved_with_wrappers

_LOG = logging.getLogger("memfit")
_ATTRIBUTE = "memfit_sharded_state"
_METHODS = ("save_own_variables", "load_own_variables")


@dataclass(frozen=True)
class ShardedState(Change):
    """Lets every rank keep a part of the optimizer's state.

    Attributes:
        ranks: How many there are.
        saves: The bytes that the one with the largest part does not keep.
    """

    kind: ClassVar[str] = "sharded state"
    ranks: int
    saves: int = 0

    @contextmanager
    def applied(self, model: Any) -> Iterator[None]:
        """Deals the state out for a while; every rank has all of it again afterwards."""
        optimizer = innermost(model.optimizer)
        state = sharded_state(model) or Shard(optimizer, self.ranks, current_ranks())
        model.train_function = None  # what Keras had traced before updates all variables
        state.take_over(model.trainable_variables)
        try:
            with saved_with_wrappers(model.optimizer):
                yield
        except BaseException:
            state.leave()
            raise
        else:
            state.hand_back()
        finally:
            model.train_function = None

    def __str__(self) -> str:
        return f"optimizer state on {self.ranks} ranks"


def why_not_sharded(model: Any) -> str | None:
    """Says why a model's optimizer cannot keep its state on several ranks, or None where it can."""
    optimizer = innermost(model.optimizer)
    if not is_alone(model):
        return "its train_step has more than one optimizer"
    if optimizer.use_ema:
        return "the averages of EMA are made of all weights"
    if optimizer.gradient_accumulation_steps:
        return "the optimizer accumulates the gradients of all weights"
    if not model.built:
        return "its weights are not made yet"
    return None


def deal_out(variables: Sequence[Any], ranks: int) -> list[int]:
    """Returns the rank of each of some variables: the largest first, each to the rank that has least so far."""
    sizes = [int(np.prod(variable.shape)) for variable in variables]
    held = [0] * ranks
    owners = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        owners[place] = min(range(ranks), key=held.__getitem__)
        held[owners[place]] += sizes[place]
    return owners


def sharded_state(model: Any) -> "Shard | None":
    """Returns the part of its optimizer's state that this rank keeps; None where it keeps all of it."""
    return shard_of(innermost(model.optimizer)) if model.compiled else None


def shard_of(optimizer: Any) -> "Shard | None":
    """Returns the part of an optimizer's state that this rank keeps; None where it keeps all of it."""
    shard: Shard | None = vars(optimizer).get(_ATTRIBUTE)
    return shard


class Shard:
    """One rank's part of an optimizer's state.

    Args:
        optimizer: Without loss scaling around it; built or not.
        count: How many ranks there are.
        ranks: Those; None where a step is only recorded: then this is the rank that keeps most.
    """

    def __init__(self, optimizer: Any, count: int, ranks: Communicator | None) -> None:
        if ranks is not None and ranks.count != count:
            raise InvalidInput(
                f"This plan deals the optimizer's state out to {count} ranks",
                received=f"a job of {ranks.count}",
                remedy="Make a plan for this job",
            )
        self._optimizer, self._count, self._ranks = optimizer, count, ranks
        self._rank = 0 if ranks is None else ranks.rank
        self._own: list[Any] = []  # the optimizer's variables, as it would save them: its own list
        self._owners: dict[int, int] = {}  # the rank of each trained variable, by its id
        self._empty: dict[int, Any] = {}  # the slots of other ranks, which have no values here, by id
        self._gathered: dict[int, Any] = {}  # values of those, by id
        self._gathered_at = -1  # behind how many steps
        self._send: Any = None
        self._update_all: Any = None  # puts the optimizer's own update back

    @property
    def variables(self) -> list[Any]:
        """All of the optimizer's variables, those without values here included."""
        return list(self._own)

    def leave_out(self, variables: Sequence[Any]) -> list[Any]:
        """Returns those of some variables that all ranks have: no slots of the optimizer."""
        slots = {id(slot) for slots in optimizer_slots(self._optimizer) for slot in slots}
        return [variable for variable in variables if id(variable) not in slots]

    def take_over(self, variables: Sequence[Any]) -> None:
        """Lets go of the slots of other ranks' variables."""
        if self._own:  # left from a training after which there was no memory to give it back
            return
        optimizer = self._optimizer
        owners = deal_out(variables, self._count)
        if self._ranks is None:
            sizes = [np.prod(variable.shape) for variable in variables]
            self._rank = int(np.argmax(np.bincount(owners, sizes)))
        # Keras gives TensorFlow's variables to `update_step`, and its own to all else.
        self._owners = {
            id(known): owner
            for variable, owner in zip(variables, owners, strict=True)
            for known in (variable, variable.value)
        }
        if not optimizer.built:
            build_without(optimizer, variables, lambda variable, _: self._owner(variable) != self._rank)
        for slots in optimizer_slots(optimizer):
            for variable, slot in zip(trained_variables(optimizer), slots, strict=True):
                if slot is not None and self._owner(variable) != self._rank:
                    let_go(slot)
                    self._empty[id(slot)] = slot
        self._own = swap_variables(optimizer, [])
        swap_variables(optimizer, [variable for variable in self._own if id(variable) not in self._empty])
        self._update_all = around_updates(optimizer, self._update)
        for name, method in zip(_METHODS, (self._save, self._load), strict=True):
            object.__setattr__(optimizer, name, method)
        object.__setattr__(optimizer, _ATTRIBUTE, self)

    def hand_back(self) -> None:
        """Gives every rank all of the state again, where all have room for it."""
        if self._ranks is not None and not self._make_room():
            _LOG.warning(
                "There is no memory to give %s all of its state back: it stays on %d ranks.",
                self._optimizer.name,
                self._count,
            )
            return
        for slot, value in self._collect():
            slot.assign(value)
        self._restore()

    def leave(self) -> None:
        """Gives the optimizer its variables back after an error, when the other ranks may be gone."""
        try:
            for slot in self._empty.values():
                assign_any(slot, np.zeros(slot.shape, tf.as_dtype(slot.dtype).as_numpy_dtype))
        except tf.errors.ResourceExhaustedError:  # the error that ends the training is the one to be seen
            _LOG.warning(
                "There is no memory to rebuild the state of %s: compile the model again.",
                self._optimizer.name,
            )
            return
        if self._ranks is not None:
            _LOG.warning(
                "The training failed while the state of %s was on %d ranks: the parts of other ranks are lost and "
                "begin at zero. Resume from a checkpoint.",
                self._optimizer.name,
                self._count,
            )
        self._restore()

    def send_weights(self) -> None:
        """Gives all ranks the variables that this one has updated, and takes theirs."""
        if self._ranks is None:
            return
        if self._send is None:
            self._send = tf.function(self._exchange, autograph=False)
        self._send()

    def gather(self) -> None:
        """Brings the whole state into the host's memory of rank 0; all ranks call this at the end of an epoch."""
        collected = [(id(slot), value.numpy()) for slot, value in self._collect()]
        self._gathered = dict(collected) if self._rank == 0 else {}
        self._gathered_at = int(self._optimizer.iterations)

    def is_whole(self) -> bool:
        """Whether the state was gathered behind the last step."""
        return self._gathered_at == int(self._optimizer.iterations)

    def value_of(self, variable: Any) -> Any:
        """Returns a variable's value, that of another rank as it was gathered.

        Raises:
            InvalidInput: If it was not gathered behind the last step.
        """
        if id(variable) not in self._empty:
            return variable.numpy()
        if not self.is_whole() or id(variable) not in self._gathered:
            raise InvalidInput(
                "Optimizer state that is dealt out to ranks is gathered, and can be saved, at the end of an epoch",
                remedy='Save with save_freq="epoch", or with save_weights_only=True',
            )
        return self._gathered[id(variable)]

    def put(self, variable: Any, value: Any) -> None:
        """Gives a variable its value, where this rank keeps it."""
        if id(variable) not in self._empty:
            variable.assign(value)

    def _owner(self, variable: Any) -> int:
        return self._owners[id(variable)]

    def _update(self, update: Any, gradients: Any, variables: Any, learning_rate: Any) -> None:
        """Updates the variables of this rank."""
        pairs = zip(gradients, variables, strict=True)
        mine = [(gradient, variable) for gradient, variable in pairs if self._owner(variable) == self._rank]
        update([gradient for gradient, _ in mine], [variable for _, variable in mine], learning_rate)

    def _save(self, store: Any) -> None:
        for number, variable in enumerate(self._own):
            store[str(number)] = self.value_of(variable)

    def _load(self, store: Any) -> None:
        for number, variable in enumerate(self._own):
            self.put(variable, store[str(number)])

    def _exchange(self) -> None:
        assert self._ranks is not None
        done: list[Any] = []
        for pack in pack_up(trained_variables(self._optimizer)):
            with tf.control_dependencies(done):
                bits = [self._own_bits(variable, variable) for variable in pack]
            done = [
                variable.value.assign(_read_bits(total, variable), read_value=False)
                for variable, total in zip(pack, sum_pack(self._ranks, bits), strict=True)
            ]

    def _collect(self) -> Iterator[tuple[Any, Any]]:
        """Yields the slots that are empty here with their values, as all ranks send theirs one after the other."""
        if self._ranks is None:
            return
        for slots in optimizer_slots(self._optimizer):
            for variable, slot in zip(trained_variables(self._optimizer), slots, strict=True):
                if slot is not None:
                    bits = self._ranks.sum_integers(self._own_bits(slot, variable))
                    if id(slot) in self._empty:
                        yield slot, _read_bits(bits, slot)

    def _own_bits(self, kept: Any, variable: Any) -> Any:
        """The bits of what belongs to a trained variable as a vector of integers; zeros if it is another rank's."""
        if self._owner(variable) == self._rank:
            return tf.reshape(as_integers(kept.value.read_value()), [-1])
        return tf.zeros([int(np.prod(kept.shape))], integers_for(tf.as_dtype(kept.dtype)))

    def _make_room(self) -> bool:
        """Takes the memory for all slots on every rank, or on none."""
        assert self._ranks is not None
        slots = list(self._empty.values())
        try:
            for slot in slots:
                assign_any(slot, tf.zeros(slot.shape, slot.dtype))
            fits = True
        except tf.errors.ResourceExhaustedError:
            fits = False
        if all(self._ranks.gather(fits)):
            return True
        for slot in slots:
            let_go(slot)
        return False

    def _restore(self) -> None:
        swap_variables(self._optimizer, self._own)
        self._update_all()
        for name in (*_METHODS, _ATTRIBUTE):
            object.__delattr__(self._optimizer, name)
        self._own, self._empty, self._gathered = [], {}, {}


def _read_bits(bits: Any, variable: Any) -> Any:
    return from_integers(tf.reshape(bits, variable.shape), tf.as_dtype(variable.dtype))
