"""What is replayed: the allocations of recorded steps, their bytes at any batch size, their births and deaths."""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from memfit.estimation.replay.dependencies import Dependencies, Inputs
from memfit.estimation.replay.events import is_birth
from memfit.estimation.replay.joined import find_joined, sum_joined
from memfit.estimation.replay.layout import Layout, lay_out
from memfit.estimation.replay.sizes import Bytes

# `ConstantFoldingOptions::max_constant_size_in_bytes` of TensorFlow's runtime.
_LARGEST_CONSTANT = 10 * 2**20

Array = Any  # of NumPy, which is imported only where it is needed


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation of a step.

    Attributes:
        op: Name of the op that asked for it; a variable's path for what is there before the first step.
        layer: The layer the op belongs to, "" for loss, optimizer and inputs.
        kind: One of `naming.KINDS`.
        shape: The tensor's shape at the recorded batch, as text.
        polynomial: Bytes as constant, per sample and per pair of samples.
    """

    op: str
    layer: str
    kind: str
    shape: str
    polynomial: Bytes

    def bytes(self, batch: int) -> int:
        """Returns the bytes it asks for at a batch size."""
        constant, per_sample, per_pair = self.polynomial
        return max(0, round(constant + batch * (per_sample + batch * per_pair)))


@dataclass(frozen=True, kw_only=True)
class Script:
    """What is replayed: allocations, and their births and deaths in order (`events.py`).

    Attributes:
        allocations: All of them: the variables that Keras lays out, what else is there before the first step, then
            what the steps ask for.
        order: Births and deaths: those of the preparation, then those of each step.
        ends: Position in `order` at which the preparation and each step end.
        threads: The thread of every position in `order`.
        variables: How many variables Keras lays out.
        prepared: How many allocations there are before the first step.
        random: Which variables have random initial values; drawing them takes two more buffers of their size.
        constants: Which allocations are constants that TensorFlow has computed ahead, which it does not do with
            large ones.
        region_at: Position in the preparation at which all that is left of the memory is taken as one region; None
            where it is not.
        first_steps: How many of the steps are a run's first.
        holds: Whose value every allocation holds, as the number of an allocation: an op that moves a variable to a
            new buffer moves the same one in every step. Empty where none is moved.
        inputs: What every op waits for, where that is known.
        temporary: Which allocations an op uses for itself, and no other reads.
        compiled: Whether XLA has compiled the step.
    """

    allocations: tuple[Allocation, ...]
    order: tuple[int, ...]
    ends: tuple[int, ...]
    threads: tuple[int, ...]
    variables: int = 0
    prepared: int = 0
    random: frozenset[int] = frozenset()
    constants: tuple[int, ...] = ()
    region_at: int | None = None
    first_steps: int = 1
    holds: tuple[int, ...] = ()
    inputs: Inputs = field(default_factory=dict)
    temporary: frozenset[int] = frozenset()
    compiled: bool = False

    @property
    def preparation(self) -> tuple[int, ...]:
        """Births and deaths between the layout of the variables and the first step."""
        return self.order[: self.ends[0]]

    def sizes(self, batch: int, whole: int | None = None) -> Array:
        """Returns the bytes of every allocation at a batch size, as an array.

        Args:
            batch: Samples in the step as it was recorded, with two micro-batches where it has such.
            whole: Samples in the batch that is computed in more micro-batches of that size.
        """
        constant, per_sample, per_pair = self._polynomials
        samples: Array = batch
        if whole is not None and self.joined:
            import numpy as np

            samples = np.full(len(self.allocations), batch)
            samples[list(self.joined)] = max(batch, whole)
        sizes = (constant + samples * (per_sample + samples * per_pair)).round().clip(0).astype(int)
        for index in self.constants:
            if sizes[index] > _LARGEST_CONSTANT:
                sizes[index] = 0
        return sizes

    def make_arrays(self) -> None:
        """Makes what every batch size needs, so that the first one asked about takes no longer than the next."""
        for name in ("_polynomials", "brief", "signs", "layout", "values"):
            getattr(self, name)

    @cached_property
    def joined(self) -> frozenset[int]:
        """The allocations of a step in micro-batches that are about the whole batch."""
        return find_joined(self.allocations, self.order, self.ends)

    @cached_property
    def left_by_parts(self) -> float:
        """Bytes per sample that micro-batches leave for the update, such as an embedding's rows."""
        return sum_joined(self.allocations, self.order[self.ends[-2] :] if len(self.ends) > 1 else ())

    @cached_property
    def codes(self) -> Array:
        """The order as an array."""
        import numpy as np

        return np.array(self.order, dtype=np.int64)

    @cached_property
    def indices(self) -> Array:
        """The allocation that each position of the order is about, as an array."""
        import numpy as np

        return np.where(self.codes >= 0, self.codes, ~self.codes)

    @cached_property
    def signs(self) -> Array:
        """1 for a birth and -1 for a death, for each position of the order, as an array."""
        import numpy as np

        return np.where(self.codes >= 0, 1, -1)

    @cached_property
    def brief(self) -> Array:
        """For every allocation whether it dies in the step it is born in, as an array."""
        import numpy as np

        births = self.codes >= 0
        steps = np.searchsorted(self.ends, np.arange(len(self.codes)), "right")
        born, died = np.zeros((2, len(self.allocations)), dtype=int)
        born[self.indices[births]] = steps[births]
        died[self.indices[~births]] = steps[~births]
        return (born == died) & (born > 0)

    @cached_property
    def layout(self) -> Layout:
        """How Keras makes the variables."""
        variables = self.allocations[: self.variables]
        return lay_out([variable.bytes(1) for variable in variables], self.random)

    @cached_property
    def values(self) -> tuple[int, ...]:
        """For every allocation whose value it holds."""
        return self.holds or tuple(range(len(self.allocations)))

    @cached_property
    def dependencies(self) -> Dependencies:
        """Which ops must wait for which."""
        return Dependencies(self.inputs, [allocation.op for allocation in self.allocations])

    @cached_property
    def windows(self) -> list[int]:
        """For every birth the position at which its op is over: where its thread frees, or asks for another op."""
        windows = [0] * len(self.order)
        next_of_thread: dict[int, int] = {}
        for position in range(len(self.order) - 1, -1, -1):
            event, thread = self.order[position], self.threads[position]
            if is_birth(event):
                following = next_of_thread.get(thread, len(self.order))
                same_op = self._op_born_at(following) == self.allocations[event].op
                windows[position] = windows[following] if same_op else following
            next_of_thread[thread] = position
        return windows

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """How many threads run the ops of each step.

        Those ask for the results of ops. Others only help in one, as with a convolution's temporaries, or only copy
        the batch.
        """
        return tuple(
            len({self.threads[place] for place in range(begin, end) if self._is_output(self.order[place])})
            for begin, end in pairwise(self.ends)
        )

    def _is_output(self, event: int) -> bool:
        return is_birth(event) and bool(self.allocations[event].op) and event not in self.temporary

    def _op_born_at(self, position: int) -> str | None:
        """The op that asks at a position; None at the end, and where something is freed."""
        if position == len(self.order) or not is_birth(self.order[position]):
            return None
        return self.allocations[self.order[position]].op

    @cached_property
    def _polynomials(self) -> Array:
        import numpy as np

        return np.array([allocation.polynomial for allocation in self.allocations]).T
