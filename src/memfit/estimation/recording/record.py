"""Recording the allocations of a few small steps, in a process of its own in a generous arena."""

import gc
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from memfit.compat.keras_layers import all_layers
from memfit.compat.keras_optimizers import know_own_variables
from memfit.estimation.optimizers import optimizers_of
from memfit.estimation.recording.batches import batch_of, beyond, ladder
from memfit.estimation.recording.failures import op_failures
from memfit.estimation.recording.kept import Setup, kept_variables, without_births
from memfit.estimation.recording.keras_step import KerasStep, has_own_step, make_variables, share_slots
from memfit.estimation.recording.recording import FOLDED, KEPT_EVENTS, STEPS, Recording
from memfit.estimation.recording.recording import Step as RecordedStep
from memfit.estimation.recording.sending import unpacked
from memfit.estimation.recording.specs import Spec, bytes_per_sample
from memfit.estimation.recording.step import Build, Model, Step, Traced
from memfit.estimation.recording.trace import Event, mark, traced
from memfit.estimation.recording.tracing import Traces, inputs_of, trace_first
from memfit.estimation.recording.xla import compiled_for

# Threads run ops in another order in every step: a small model, whose few large ops may or may not run at the same
# time, peaks up to 20% higher in one step of thirty than in most, and has quick steps; a large one averages that
# out, and is recorded as often as the time allows, but never less often than the peak's definition needs.
_STEPS = range(5, 31)
# CPU seconds for them, which do not depend on what else the machine does: what tracing leaves of those that an
# estimate may take, some of which TensorFlow's start takes, and as much again the profiler's end.
_SECONDS = (1.5, 6.0)
# The same where no smaller batch shows what the one asked about takes.
_SECONDS_OF_ITSELF = 30.0
# After which no more steps are added to the least number of them.
_SECONDS_OF_MORE = 3.0
_SECONDS_BEFORE = 10.0
# How much longer than steps in a row those of a larger batch may take: 16 volumes of 96^3 took minutes, and 15 GB.
_LONGER = 3.0
# Smaller arrays may lie where TensorFlow needs no copy of them, at any batch size.
_LARGE_ARRAY = 2**16


@op_failures()
def record(
    payload: bytes, build: Build | None, largest: int, target: int | str, phase: str, only: int | None = None
) -> Recording:
    """Records a phase of the packed (model, spec); runs in the isolated process.

    Args:
        payload: What `packed` made.
        build: Builds the step to record; None for the model's own.
        largest: The batch size of steps in a row, if the time allows.
        target: The batch size asked about, which XLA compiles for; why not, where that was seen to fail.
        phase: "train", "validate" or "predict".
        only: The only batch size that the step runs with; None where others show more of it.
    """
    gc.disable()  # it would look through the ten thousands of objects of a graph again and again, a second in all
    begin = time.process_time()
    model, (spec,) = unpacked(payload)
    optimizers = optimizers_of(model)
    for optimizer in optimizers:
        know_own_variables(optimizer)
    if hasattr(model, "train_step"):  # a loss function has its variables
        make_variables(model, spec, only or min(largest, 2), phase)
    with traced() as seen:
        step = KerasStep(model, phase) if build is None else build(model)
        batches = ladder(largest, step.parts) if only is None else (only,)
        mark()
        fresh = [optimizer for optimizer in optimizers if not optimizer.built]
        if phase == "train" and fresh and not has_own_step(model):
            # As Keras does in the first step: see `share_slots`. A step of one's own chooses what it trains.
            model.optimizer.build(model.trainable_variables)
        mark()
        traces = trace_first(step, model, spec, batches)
        mark()
    there = [optimizer for optimizer in optimizers if optimizer not in fresh]
    slots = [variable.value for optimizer in there for variable in optimizer.variables]
    made = [] if traces.first is None else traces.first.variables
    # Tracing a step of one's own makes weights, which are counted as such, and optimizers' state, which is made
    # anew before each first step that is recorded.
    counted = [variable.value for owner in (model, *fresh) for variable in owner.variables]
    setup = Setup(
        without_births(seen[0] + seen[2], counted),
        {id(v): v for v in (*slots, *step.variables(), *made)}.values(),
    )
    recorder = _StepRecorder(step, model, spec, traces)
    recorder.run_others(min(max(_SECONDS_BEFORE - (time.process_time() - begin), _SECONDS[0]), _SECONDS[1]))
    recorder.run_in_a_row(fresh)
    steps = recorder.steps
    return Recording(
        phase=phase,
        variables=kept_variables(model, there, step, traces.first, setup, own=build is None),
        folded=recorder.folded,
        starts=recorder.starts,
        others=recorder.others,
        steps=steps,
        compiled=(compiled_for(step, spec, steps[-1], target),) if model.jit_compile else (),
        layers=tuple(layer.name for layer in all_layers(model) if layer is not model),
        shapes=frozenset(_shape_text(v.shape) for v in model.trainable_variables),
        inputs={}
        if model.jit_compile or recorder.largest_trace is None
        else inputs_of(recorder.largest_trace),
        setup=setup.events,
        seconds=tuple(recorder.seconds),
    )


class _StepRecorder:
    """Runs a step again and again, and keeps what was seen.

    Attributes:
        folded: The constants of the first step of each batch size that has a trace of its own.
        others: A step of each other batch.
        starts: The making of the optimizer's state before each first step.
        steps: Steps in a row at the largest batch asked for that the time allows, first steps first.
        seconds: The CPU time of a step of each batch up to that, under the profiler.
    """

    folded: tuple[RecordedStep, ...] = ()
    others: tuple[RecordedStep, ...]
    starts: tuple[tuple[Event, ...], ...]
    steps: tuple[RecordedStep, ...]

    def __init__(self, step: Step, model: Model, spec: Spec, traces: Traces) -> None:
        self._step, self._spec, self._traces = step, spec, traces
        self._model = model
        self._largest = traces.batches[-1]
        self._seconds = 0.0
        self.seconds: list[tuple[int, float]] = []

    def run_others(self, seconds: float) -> None:
        """Runs the first step of each trace, and a step of each other batch that leaves time for several in a row.

        Args:
            seconds: What steps in a row may take afterwards.
        """
        self._seconds = max(seconds, _SECONDS_OF_ITSELF) if self._traces.only_itself else seconds
        batches, larger = self._traces.batches, None
        if self._model.jit_compile or self._traces.first is None:
            self._run(batches[0])  # XLA compiles in the first call
        elif not self._traces.each:
            self._run_first(batches[0])
        elif len(batches) == 1:
            self._time_first(batches[0])
        else:
            batches, larger = self._choose_batches()
        self._record_others(batches, larger)

    def _choose_batches(self) -> tuple[tuple[int, ...], int | None]:
        """Chooses the largest batch that the time allows, one beside it, and the smallest: do they show a line?"""
        batches = self._traces.batches
        runs = [batches[0]]
        seconds = self._time_first(batches[0])
        if batches == ladder(1, self._step.parts) and seconds > self._seconds:
            # A step of one sample (in a part) takes long: it is recorded itself, and one of two just once.
            self._time_first(batches[1])
            return (runs[0],), batches[1]
        while True:
            # Twice the samples take at most twice the time.
            largest = max(batches[1:2] + tuple(b for b in batches if b * seconds <= runs[-1] * self._seconds))
            if largest <= runs[-1]:
                break
            runs.append(largest)
            seconds = self._time_first(largest)
        larger = beyond(runs[-1], self._step.parts) if runs[-1] == batches[-1] else None
        if larger is not None and larger * seconds > runs[-1] * _LONGER * self._seconds:
            larger = None
        half = max(batch for batch in batches if batch < runs[-1])
        if larger is not None:
            self._time_first(larger)
        elif len(runs) == 2 and half != runs[0]:
            runs.insert(1, half)
            self._time_first(half)
        chosen = (runs[0], *runs[-2:]) if len(runs) > 2 else tuple(runs)
        kept = [step for step in self.folded if step.batch in (*chosen, larger)]
        self.folded = tuple(sorted(kept, key=lambda step: (step.batch == chosen[-1], step.batch)))
        return chosen, larger

    def _time_first(self, batch: int) -> float:
        """Keeps the constants of a trace's first step, and returns the seconds that a recording of it takes."""
        self._step.trace(self._traces.specs(self._spec, batch))  # it takes longer while the profiler is on
        self._run_first(batch)
        begin = time.process_time()
        self._run(batch)
        return _STEPS.start * (time.process_time() - begin)

    def _run_first(self, batch: int) -> None:
        """Runs a trace's first step, in which TensorFlow optimises it, and keeps the constants that this leaves."""
        with traced() as seen:
            self._run(batch)
            mark()
        self.folded += (RecordedStep(batch, _folded(seen[0])),)

    def _record_others(self, batches: tuple[int, ...], larger: int | None) -> None:
        with traced() as seen:
            for batch in batches[:-1]:
                begin = time.process_time()
                self._run(batch)
                mark()
                self.seconds.append((batch, time.process_time() - begin))
                # The next batch but one takes at most four times as long.
                if not self._traces.each and _STEPS.start * 4 * self.seconds[-1][1] > self._seconds:
                    break
            self._largest = batches[len(self.seconds)]
            others = [batch for batch, _ in self.seconds]
            if not self._traces.each and self._largest == batches[-1]:
                larger = beyond(self._largest, self._step.parts)
            if larger is not None:
                self._run(larger)
                mark()
                others.append(larger)
        self.others = tuple(
            RecordedStep(batch, self._with_batch(events, batch))
            for batch, events in zip(others, seen, strict=True)
        )

    @property
    def largest_trace(self) -> Traced | None:
        """The trace that the largest recorded batch runs in."""
        return self._step.trace(self._traces.specs(self._spec, self._largest))

    def run_in_a_row(self, fresh: Sequence[Any]) -> None:
        """Runs steps of the largest batch as often as the time allows.

        With fresh optimizers, every few steps their state is made anew before one, as in a run's first step: the
        gaps that it leaves stay for the whole run, and differ from run to run, too.
        """
        data, spec = batch_of(self._spec, self._largest), self._traces.specs(self._spec, self._largest)
        if self._traces.loops:
            # TensorFlow takes every op for one that takes long, and hands it to another thread, until it has timed
            # it a hundred times; then short ops run at once, in another order. While it is traced it times none.
            for _ in range(_STEPS.start - 1):
                self._step.run(data, spec)
        most = _STEPS.stop - 1
        if self.others:
            most = min(most, KEPT_EVENTS // max(1, len(self.others[-1].events)))
        logs: list[Any] = []
        firsts = count = 0
        wanted = 1
        times: list[float] = []
        with traced() as seen:
            mark()
            begin = time.process_time()
            while count < _STEPS.start or (count < most and time.process_time() - begin < _SECONDS_OF_MORE):
                if firsts < wanted:
                    for optimizer in fresh:
                        if optimizer.built:
                            share_slots(optimizer)
                    mark()
                    firsts += 1
                started = time.process_time()
                # Keras, too, holds the logs of a step until those of the next are there.
                logs[:] = [self._step.run(data, spec)]
                mark()
                times.append(time.process_time() - started)
                count += 1
                if count == 1 and fresh:
                    wanted = max(1, int(min(most, _SECONDS_OF_MORE / (time.process_time() - begin))) // STEPS)
        self.seconds.append((self._largest, min(times)))
        self._keep(seen, firsts, count)

    def _keep(self, seen: Sequence[tuple[Event, ...]], firsts: int, count: int) -> None:
        # What comes before a first step is the making of the optimizer's state.
        first_steps = range(2, 2 * firsts + 1, 2)
        later_steps = range(len(seen) - (count - firsts), len(seen))
        self.starts = tuple(seen[number - 1] for number in first_steps)
        self.steps = tuple(
            RecordedStep(self._largest, self._with_batch(seen[number], self._largest))
            for number in (*first_steps, *later_steps)
        )

    def _run(self, batch: int) -> None:
        self._step.run(batch_of(self._spec, batch), self._traces.specs(self._spec, batch))

    def _with_batch(self, events: tuple[Event, ...], batch: int) -> tuple[Event, ...]:
        """Returns a step's events with those of its batch, where TensorFlow took an array over without a copy.

        It was seen to, in spite of `batch_of`, and does not with the arrays of a large batch.
        """
        if not self._step.is_given_samples:
            return events
        seen = Counter(event.requested for event in events if not event.freed and not event.op)
        wanted = Counter(
            size * batch for size in bytes_per_sample(self._spec) if size * batch >= _LARGE_ARRAY
        )
        born = tuple(
            Event(-1 - number, size, size, "", "", "", freed=False)
            for number, size in enumerate((wanted - seen).elements())
        )
        return (*born, *events, *(event._replace(freed=True) for event in born))


def _folded(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Returns the constants among the events of a step's first call that stay when it has ended."""
    alive: dict[int, Event] = {}
    for event in events:
        if event.freed:
            alive.pop(event.address, None)
        else:
            alive[event.address] = event
    return tuple(event for event in alive.values() if FOLDED in event.op or _is_constant(event))


def _is_constant(event: Event) -> bool:
    """Whether an op made it when it was set up, not when it ran: a constant, such as zeros of a known shape."""
    return bool(event.op) and not event.region and not event.shape


def _shape_text(shape: Any) -> str:
    return "[" + ",".join(str(int(size)) for size in shape) + "]"
