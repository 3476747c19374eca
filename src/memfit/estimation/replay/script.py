"""What is replayed: the allocations of recorded steps, their bytes at any batch size, their births and deaths."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from memfit.estimation.recording.recording import FOLDED, Recording, Step
from memfit.estimation.recording.trace import Event
from memfit.estimation.recording.xla import Compiled
from memfit.estimation.replay.dependencies import Dependencies, Inputs
from memfit.estimation.replay.holding import Holding, made_anew
from memfit.estimation.replay.layout import LayingOut, laying_out, nursery
from memfit.estimation.replay.naming import Names
from memfit.estimation.replay.sizes import Asker, Bytes, askers, size_of, sizes_by_asker

# The peak is the largest of so many steps.
STEPS = 5
# Births and deaths of recorded steps that are kept, to choose from those that are replayed at a batch size.
KEPT_EVENTS = 120_000
# `ConstantFoldingOptions::max_constant_size_in_bytes` of TensorFlow's runtime.
_LARGEST_CONSTANT = 10 * 2**20
# The region type of what an op uses for itself.
_TEMPORARY = "temp"


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation of a step.

    Attributes:
        op: Name of the op that asked for it; a variable's path for what is there before the first step.
        layer: The layer the op belongs to, "" for loss, optimizer and inputs.
        kind: One of `naming.KINDS`.
        phase: "forward", "backward", "update" or "".
        shape: The tensor's shape at the recorded batch, as text.
        polynomial: Bytes as constant, per sample and per pair of samples.
        birth: Position in the replay's order.
        death: Position at which it is freed, or None.
    """

    op: str
    layer: str
    kind: str
    phase: str
    shape: str
    polynomial: Bytes
    birth: int
    death: int | None

    def bytes(self, batch: int) -> int:
        """Returns the bytes it asks for at a batch size."""
        constant, per_sample, per_pair = self.polynomial
        return max(0, round(constant + batch * (per_sample + batch * per_pair)))


@dataclass(frozen=True)
class Script:
    """What is replayed: allocations, and the order of births (n) and deaths (-1 - n) of allocation n.

    Attributes:
        allocations: All of them, in order of birth.
        before: How many are there before the first step: variables, then constants.
        random: Which of those have random initial values; drawing them takes two more buffers of their size.
        constants: Which of those TensorFlow has computed ahead, which it does not do with large ones.
        order: Births and deaths.
        ends: Position in `order` at which the preparation and each step end.
        threads: The thread of every position in `order`.
        one_piece: How many variables there are when all that is left of the memory is taken as one region; None
            where it is not.
        kept_constants: How many of those before the first step are constants.
        first_steps: How many of the steps are a run's first.
        holds: Whose value every allocation holds, as the number of an allocation: an op that moves a variable to a
            new buffer moves the same one in every step. Empty where none is moved.
        inputs: What every op waits for, where that is known.
        temporary: Which allocations an op uses for itself, and no other reads.
        compiled: Whether XLA has compiled the step.
        nursery: The bytes of gaps that are made for what is small, before the first step.
    """

    allocations: tuple[Allocation, ...]
    before: int
    random: frozenset[int]
    constants: tuple[int, ...]
    order: tuple[int, ...]
    ends: tuple[int, ...]
    threads: tuple[int, ...]
    one_piece: int | None = None
    kept_constants: int = 0
    first_steps: int = 1
    holds: tuple[int, ...] = ()
    inputs: Inputs = field(default_factory=dict)
    temporary: frozenset[int] = frozenset()
    compiled: bool = False
    nursery: tuple[int, ...] = ()

    @property
    def variables(self) -> int:
        """How many variables are there before the first step."""
        return self.before - self.kept_constants

    def sizes(self, batch: int) -> Any:
        """Returns the bytes of every allocation at a batch size, as an array."""
        constant, per_sample, per_pair = self._polynomials
        found = (constant + batch * (per_sample + batch * per_pair)).round().clip(0).astype(int)
        for index in self.constants:
            if found[index] > _LARGEST_CONSTANT:
                found[index] = 0
        return found

    def make_arrays(self) -> None:
        """Makes what every batch size needs, so that the first one asked about takes no longer than the next."""
        self.sizes(1), self.brief, self.signs, self.laying_out, self.values

    @cached_property
    def codes(self) -> Any:
        """The order as an array."""
        import numpy as np

        return np.array(self.order, dtype=np.int64)

    @cached_property
    def indices(self) -> Any:
        """The allocation that each position of the order is about, as an array."""
        return self.codes ^ (self.codes >> 63)  # -1 - n has the bits of n turned over

    @cached_property
    def signs(self) -> Any:
        """1 for a birth and -1 for a death, for each position of the order, as an array."""
        return 1 | (self.codes >> 63)

    @cached_property
    def brief(self) -> Any:
        """For every allocation whether it dies in the step it is born in, as an array."""
        import numpy as np

        births = self.codes >= 0
        steps = np.searchsorted(self.ends, np.arange(len(self.codes)), "right")
        born, died = np.full((2, len(self.allocations)), 0)
        born[self.indices[births]] = steps[births]
        died[self.indices[~births]] = steps[~births]
        return (born == died) & (born > 0)

    @cached_property
    def laying_out(self) -> LayingOut:
        """How Keras makes the variables."""
        return laying_out(
            [allocation.bytes(1) for allocation in self.allocations[: self.variables]], self.random
        )

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
        after: dict[int, int] = {}  # the next position of each thread
        for position in range(len(self.order) - 1, -1, -1):
            code, thread = self.order[position], self.threads[position]
            if code >= 0:
                following = after.get(thread, len(self.order))
                same = (
                    following < len(self.order)
                    and self.order[following] >= 0
                    and self.allocations[self.order[following]].op == self.allocations[code].op
                )
                windows[position] = windows[following] if same else following
            after[thread] = position
        return windows

    @cached_property
    def _polynomials(self) -> Any:
        import numpy as np

        return np.array([allocation.polynomial for allocation in self.allocations]).T


def script_of(recording: Recording, *optimizers: str) -> Script:
    """Turns a recording into what can be replayed at any batch size."""
    names = Names(recording.layers, *optimizers)
    layer_of, phase_of = cache(names.layer), cache(names.phase)  # every step has the same ops
    count = max(STEPS, KEPT_EVENTS // max(1, len(recording.steps[-1].events)))
    steps = recording.steps[:count]
    all_steps: tuple[Step | Compiled, ...] = (
        *recording.folded,
        *recording.smaller,
        *steps,
        *recording.compiled,
    )
    sizes = sizes_by_asker(all_steps, recording.shapes)
    found: list[tuple[str, str, str, str, str, Bytes, int]] = []  # allocations, but for their deaths
    order: list[int] = []
    threads: list[int] = []
    alive: dict[int, int] = {}
    waiting: dict[int, list[int]] = defaultdict(list)  # variables that a step may replace, by their size
    random = set()
    for variable in recording.variables:
        if variable.random:
            random.add(len(found))
        waiting[variable.bytes].append(len(found))
        found.append((variable.name, "", variable.kind, "", "", (variable.bytes, 0, 0), len(found)))
    constants = []
    if recording.folded:
        for event, asker in askers(recording.folded[-1].events, recording.folded[-1].batch):
            if FOLDED in event.op:
                constants.append(len(found))
            found.append(
                (event.op, layer_of(event.op), "workspace", "", event.shape, sizes[asker], len(found))
            )
    before = len(found)
    holding = Holding(moved_before=recording.guarded)
    temporary: list[int] = []

    def born(event: Event, polynomial: Bytes, kind: str) -> None:
        alive[event.address] = len(found)
        order.append(len(found))
        threads.append(event.thread)
        found.append(
            (event.op, layer_of(event.op), kind, phase_of(event.op), event.shape, polynomial, len(order))
        )

    for event in recording.starts[0]:
        if not event.freed:
            born(event, (event.requested, 0, 0), "optimizer state")
        elif event.address in alive:
            order.append(-1 - alive.pop(event.address))
            threads.append(event.thread)
    ends = [len(order)]
    state = range(before, len(found))
    for number, step in enumerate(steps):
        if 0 < number < len(recording.starts):
            made_anew(recording.starts[number], state, alive)
        outliving = _outliving(step.events)
        who: dict[int, Asker] = {id(event): asker for event, asker in askers(step.events, step.batch)}
        holding.begin_step()
        for event in step.events:
            if not event.freed:
                if id(event) in outliving:
                    holding.born(len(found), event)
                elif event.region == _TEMPORARY:
                    temporary.append(len(found))
                kind = names.kind(event.op, event.region, outlives_step=id(event) in outliving)
                born(event, size_of(event, who[id(event)], step.batch, sizes, recording.shapes), kind)
                continue
            index = alive.pop(event.address, None)
            if index is None and waiting[event.requested]:
                index = waiting[event.requested].pop()
                holding.died(index, event)
            if index is not None:
                order.append(-1 - index)
                threads.append(event.thread)
        ends.append(len(order))
    deaths = {-1 - code: position for position, code in enumerate(order, 1) if code < 0}
    allocations = tuple(Allocation(*fields, deaths.get(index)) for index, fields in enumerate(found))
    script = Script(
        allocations,
        before,
        frozenset(random),
        tuple(constants),
        tuple(order),
        tuple(ends),
        tuple(threads),
        kept_constants=before - len(recording.variables),
        first_steps=len(recording.starts),
        holds=holding.of_all(len(found)),
        inputs=recording.inputs,
        temporary=frozenset(temporary),
        compiled=bool(recording.compiled),
        nursery=tuple(nursery(v.bytes for v in recording.variables if v.kind == "weights"))
        if recording.nursery
        else (),
    )
    script.make_arrays()
    return script


def _outliving(step: Sequence[Event]) -> set[int]:
    alive: dict[int, int] = {}
    for event in step:
        if event.freed:
            alive.pop(event.address, None)
        else:
            alive[event.address] = id(event)
    return set(alive.values())
