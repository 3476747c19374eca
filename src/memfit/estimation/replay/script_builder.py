"""Turning a recording into a script that can be replayed at any batch size."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache

from memfit.estimation.recording.recording import FOLDED, KEPT_EVENTS, STEPS, Recording, Step, Variable
from memfit.estimation.recording.trace import Event
from memfit.estimation.replay.events import death_of
from memfit.estimation.replay.holding import Holding, match_remade_state
from memfit.estimation.replay.naming import Names
from memfit.estimation.replay.script import Allocation, Script
from memfit.estimation.replay.sizes import Bytes, askers, size_of, sizes_by_asker

# The region type of what an op uses for itself.
_TEMPORARY = "temp"
# The op that takes all that is left of the memory, so that the allocator has it as one region.
_ONE_REGION = "memfit_one_region"


def build_script(recording: Recording, *optimizers: str) -> Script:
    """Turns a recording into what can be replayed at any batch size.

    Args:
        optimizers: Names of the model's optimizers, by which the ops of an update are known.
    """
    script = _ScriptBuilder(recording, optimizers).build()
    script.make_arrays()
    return script


class _ScriptBuilder:
    """Numbers allocations, and finds for every death the allocation that dies."""

    def __init__(self, recording: Recording, optimizers: Sequence[str]) -> None:
        names = Names(recording.layers, *optimizers)
        # Every step has the same ops.
        self._layer_of, self._kind_of = cache(names.layer), cache(names.kind)
        self._recording = recording
        kept = max(STEPS, KEPT_EVENTS // max(1, len(recording.steps[-1].events)))
        self._steps = recording.steps[:kept]
        self._sizes = sizes_by_asker(
            (*recording.folded, *recording.others, *self._steps, *recording.compiled), recording.shapes
        )
        self._allocations: list[Allocation] = []
        self._order: list[int] = []
        self._threads: list[int] = []
        self._alive: dict[int, int] = {}  # by address
        # Variables from before the steps, by size: which of them a step replaces is not known by address.
        self._replaceable: dict[int, list[int]] = defaultdict(list)
        self._holding = Holding()
        self._temporary: list[int] = []

    def build(self) -> Script:
        """Builds the script."""
        recording = self._recording
        before = [variable for variable in recording.variables if _is_there_before(variable)]
        for variable in before:
            self._add_variable(variable)
        region_at = self._add_setup()
        constants, folded = self._number_constants()
        state = self._add_start()
        self._order += constants  # TensorFlow makes them when the optimizer has its state
        self._threads += [0] * len(constants)
        prepared, ends = len(self._allocations), [len(self._order)]
        for number, step in enumerate(self._steps):
            if 0 < number < len(recording.starts):
                match_remade_state(recording.starts[number], state, self._alive)
            self._add_step(step)
            ends.append(len(self._order))
        return Script(
            allocations=tuple(self._allocations),
            order=tuple(self._order),
            ends=tuple(ends),
            threads=tuple(self._threads),
            variables=len(before),
            prepared=prepared,
            random=frozenset(number for number, variable in enumerate(before) if variable.random),
            constants=folded,
            region_at=region_at,
            first_steps=len(recording.starts),
            holds=self._holding.of_all(len(self._allocations)),
            inputs=recording.inputs,
            temporary=frozenset(self._temporary),
            compiled=bool(recording.compiled),
        )

    def _add_variable(self, variable: Variable) -> int:
        """Numbers a variable, which a step may replace."""
        number = len(self._allocations)
        self._replaceable[variable.bytes].append(number)
        self._allocations.append(Allocation(variable.name, "", variable.kind, "", (variable.bytes, 0, 0)))
        return number

    def _add_setup(self) -> int | None:
        """Adds what building and tracing the step did; returns where it took all that was left as one region."""
        setup = self._recording.setup
        made_there = {v.event: v for v in self._recording.variables if v.event is not None}
        region_at: int | None = None
        for position, event in enumerate(setup):
            if event.freed:
                self._die(event, self._alive.pop(event.address, None))
            elif _ONE_REGION in event.op:
                region_at = len(self._order)
            elif position in made_there:
                self._alive[event.address] = self._add_variable(made_there[position])
                self._append(self._alive[event.address], event.thread)
            else:
                self._be_born(event, (event.requested, 0, 0), "workspace")
        self._alive.clear()  # steps that are not replayed ran in between
        for variable in self._recording.variables:
            if variable.event is None and not _is_there_before(variable):
                self._append(self._add_variable(variable), 0)
        return region_at

    def _number_constants(self) -> tuple[Sequence[int], tuple[int, ...]]:
        """Numbers the constants that TensorFlow keeps; returns all, and those it has computed ahead."""
        first = len(self._allocations)
        folded: list[int] = []
        for step in self._recording.folded[-1:]:
            for event, asker in askers(step.events, step.batch):
                if FOLDED in event.op:
                    folded.append(len(self._allocations))
                self._allocations.append(
                    Allocation(
                        event.op, self._layer_of(event.op), "workspace", event.shape, self._sizes[asker]
                    )
                )
        return range(first, len(self._allocations)), tuple(folded)

    def _add_start(self) -> Sequence[int]:
        """Adds the making of the optimizer's state; returns its allocations."""
        first = len(self._allocations)
        for event in self._recording.starts[0]:
            if event.freed:
                self._die(event, self._alive.pop(event.address, None))
            else:
                self._be_born(event, (event.requested, 0, 0), "optimizer state")
        return range(first, len(self._allocations))

    def _add_step(self, step: Step) -> None:
        outliving = _outliving(step.events)
        births = askers(step.events, step.batch)
        self._holding.begin_step()
        for event in step.events:
            if event.freed:
                self._die(event, self._dying(event))
                continue
            _, asker = next(births)
            outlives = id(event) in outliving
            if outlives:
                self._holding.born(len(self._allocations), event)
            elif event.region == _TEMPORARY:
                self._temporary.append(len(self._allocations))
            size = size_of(event, asker, step.batch, self._sizes, self._recording.shapes)
            self._be_born(event, size, self._kind_of(event.op, event.region, outlives_step=outlives))

    def _dying(self, event: Event) -> int | None:
        """The allocation that a step frees; None where it was not seen."""
        number = self._alive.pop(event.address, None)
        if number is None and self._replaceable[event.requested]:
            number = self._replaceable[event.requested].pop()
            self._holding.died(number, event)
        return number

    def _be_born(self, event: Event, size: Bytes, kind: str) -> None:
        self._alive[event.address] = len(self._allocations)
        self._append(len(self._allocations), event.thread)
        self._allocations.append(Allocation(event.op, self._layer_of(event.op), kind, event.shape, size))

    def _die(self, event: Event, number: int | None) -> None:
        if number is not None:
            self._append(death_of(number), event.thread)

    def _append(self, code: int, thread: int) -> None:
        self._order.append(code)
        self._threads.append(thread)


def _is_there_before(variable: Variable) -> bool:
    """Whether a variable is there before the step is built; buffers for gradients are made by the step."""
    return variable.event is None and variable.kind != "gradients"


def _outliving(events: Iterable[Event]) -> set[int]:
    """The ids of the events of a step whose allocations outlive it."""
    alive: dict[int, int] = {}
    for event in events:
        if event.freed:
            alive.pop(event.address, None)
        else:
            alive[event.address] = id(event)
    return set(alive.values())
