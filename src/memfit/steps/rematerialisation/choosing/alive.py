"""What is alive when: the bytes of activations and gradients at every op of a step, for any choice of what to keep.

A step is a list of ops in the order they run: the forward pass, then the backward pass, segment by segment from the
last, each forward op that runs again just before the first op that needs it. A buffer is born when its op runs and
dies with the last op that reads it. The search asks for thousands of choices, so births and deaths are added up in
arrays.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memfit.steps.rematerialisation.trace import TensorId, Trace

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.float64]  # exact: far below 2**53

# TensorFlow gives these ops their input's buffer for the output when no other op reads it.
_IN_PLACE = {
    *("Relu", "Relu6", "ReluGrad", "Relu6Grad", "Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Maximum"),
    *(
        "Minimum",
        "Neg",
        "Exp",
        "Erf",
        "Tanh",
        "Sigmoid",
        "Square",
        "SquaredDifference",
        "SelectV2",
        "Softmax",
    ),
    *("BiasAdd", "Rsqrt", "TanhGrad", "SigmoidGrad", "Elu", "Softplus"),
}


@dataclass(frozen=True)
class Choice:
    """Tensors kept, and the forward ops at which segments start."""

    kept: frozenset[TensorId]
    starts: tuple[int, ...]

    def without(self, tensor: TensorId) -> "Choice":
        """Returns the choice that does not keep a tensor."""
        return Choice(self.kept - {tensor}, self.starts)

    def keeping(self, tensor: TensorId) -> "Choice":
        """Returns the choice that keeps a tensor, too."""
        return Choice(self.kept | {tensor}, self.starts)

    def starting(self, index: int) -> "Choice":
        """Returns the choice with one more segment, which starts at a forward op."""
        return Choice(self.kept, tuple(sorted({*self.starts, index})))

    def join(self, other: "Choice") -> "Choice":
        """Returns the choice that keeps only what both keep, with the segments of both."""
        return Choice(self.kept & other.kept, tuple(sorted({*self.starts, *other.starts})))

    def not_starting(self, index: int) -> "Choice":
        """Returns the choice without the segment that starts at a forward op."""
        return Choice(self.kept, tuple(start for start in self.starts if start != index))


@dataclass(frozen=True)
class Events:
    """Reads and writes of buffers: which buffer, and at which time (a position in the order the ops run in)."""

    read_times: Ints
    read_buffers: Ints
    write_times: Ints
    write_buffers: Ints


@dataclass(frozen=True)
class Usage:
    """The memory of a step with one choice.

    Attributes:
        totals: The bytes alive at every time.
        ops: The op that runs at every time, by its index in the trace.
        rerun: The forward ops that run again.
        cost: What running them again costs, in the unit of `TracedOp.cost`.
        events: Reads and writes. A buffer's number is its tensor's number, plus the number of tensors times the
            run it is made in: 0 the forward pass, n the n-th segment's recomputation.
        last_reads: For each buffer the time of its last read; -1 where there is none.
    """

    totals: Bytes
    ops: Ints
    rerun: list[int]
    cost: float
    events: Events
    last_reads: Ints

    @property
    def peak(self) -> int:
        """The most that is alive at any time."""
        return int(self.totals.max(initial=0))

    @property
    def peak_time(self) -> int:
        """The first time at which most is alive."""
        return int(self.totals.argmax())

    def excess(self, aim: float) -> float:
        """Adds up what is above an aim, over all times: less of it is nearer, though the peak be the same."""
        above = self.totals[self.totals > aim]
        return float(above.sum() - aim * len(above))


class Ledger:
    """Counts what is alive among the tensors of a trace.

    Args:
        trace: The ops. A tensor that only shows another's buffer (a reshape) takes nothing.
        above: Tensors of at most this many bytes are left out, and with them the ops that touch no other: a count
            takes a tenth of the time.
    """

    def __init__(self, trace: Trace, above: int = -1) -> None:
        self.trace = trace
        self._tensors = [
            (index, number)
            for index, op in enumerate(trace.ops)
            for number, size in enumerate(op.sizes)
            if size > above
        ]
        self._numbers = {tensor: number for number, tensor in enumerate(self._tensors)}
        makes_buffers = [op.reads_values and not op.is_alias for op in trace.ops]
        self._bytes = np.array(
            [trace.size(tensor) if makes_buffers[tensor[0]] else 0 for tensor in self._tensors], np.float64
        )
        self._recomputable = np.array(
            [
                tensor[0] < trace.forward_count and trace.ops[tensor[0]].recomputable
                for tensor in self._tensors
            ],
            bool,
        )
        self._step_ops: list[int] = []  # the ops that touch a counted tensor, in the order of the trace
        self._reads: list[list[int]] = []
        self._writes: list[list[int]] = []
        for index in (index for index, makes in enumerate(makes_buffers) if makes):
            op = trace.ops[index]
            reads = self._counted(dict.fromkeys(map(trace.root, op.inputs)))
            writes = self._counted((index, number) for number in range(len(op.sizes)))
            if reads or writes:
                self._step_ops.append(index)
                self._reads.append(reads)
                self._writes.append(writes)
        self._makers = {tensor: step for step, writes in enumerate(self._writes) for tensor in writes}
        self._plain_reads = _Rows(self._reads)
        self._plain_writes = _Rows(self._writes)
        self._ops = np.array(self._step_ops, np.int64)
        self._forward = int(np.searchsorted(self._ops, trace.forward_count))
        self._levels = np.array(
            [trace.ops[index].level for index in self._step_ops[self._forward :]], np.int64
        )
        self._in_place = np.array(
            [trace.in_place and trace.ops[index].type in _IN_PLACE for index in self._step_ops], bool
        )

    def count(self, choice: Choice) -> Usage:
        """Counts what is alive at every op of a step that keeps the tensors of a choice."""
        gone = self._recomputable.copy()
        gone[self._counted(choice.kept)] = False
        segments = np.searchsorted(np.array(choice.starts, np.int64), self._levels, side="right")
        order = np.argsort(-segments, kind="stable")  # of the backward steps
        rerun = self._find_rerun(gone, segments + 1, order)

        times = np.arange(len(self._ops))
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order))
        times[self._forward :] = self._forward + ranks + np.searchsorted(rerun.before, ranks, side="right")
        runs = np.concatenate([np.zeros(self._forward, np.int64), segments + 1])
        rerun_times = self._forward + rerun.before + np.arange(len(rerun.steps))
        events = self._events(gone, times, runs, rerun, rerun_times)

        ops = np.empty(len(times) + len(rerun_times), np.int64)
        ops[times], ops[rerun_times] = self._ops, self._ops[rerun.steps]
        in_place = np.empty(len(ops), bool)
        in_place[times], in_place[rerun_times] = self._in_place, self._in_place[rerun.steps]
        totals, last_reads = self._add_up(events, in_place)
        indices = self._ops[rerun.steps].tolist()
        cost = sum(self.trace.ops[index].cost for index in indices)
        return Usage(totals, ops, indices, cost, events, last_reads)

    def list_idle(self, usage: Usage, time: int) -> list[tuple[int, TensorId]]:
        """Lists the forward tensors, each with its run, that are alive at a time and not used then."""
        events, count = usage.events, len(self._tensors)
        born = events.write_buffers[events.write_times < time]
        idle = set(born[usage.last_reads[born] > time].tolist())
        idle -= set(events.read_buffers[events.read_times == time].tolist())
        return [
            (buffer // count, tensor)
            for buffer in idle
            if (tensor := self._tensors[buffer % count])[0] < self.trace.forward_count
        ]

    def find_next_use(self, usage: Usage, run: int, tensor: TensorId, time: int) -> int:
        """Returns the op that reads a buffer next after a time."""
        buffer = self._numbers[tensor] + run * len(self._tensors)
        times = usage.events.read_times[usage.events.read_buffers == buffer]
        return int(usage.ops[times[times > time].min()])

    def list_recomputed(self, usage: Usage) -> set[TensorId]:
        """Lists the tensors that are computed again."""
        count = len(self._tensors)
        buffers = usage.events.write_buffers
        return {self._tensors[number] for number in (buffers[buffers >= count] % count).tolist()}

    def _find_rerun(self, gone: Flags, runs: Ints, order: Ints) -> "_Rerun":
        """Finds the forward steps that run again: each once a run, as late as the backward pass allows."""
        is_gone, run_of, step_of = gone.tolist(), runs.tolist(), order.tolist()
        needs = np.zeros(len(self._ops), bool)
        needs[self._plain_reads.rows[gone[self._plain_reads.values]]] = True
        steps: list[int] = []
        before: list[int] = []
        of_run: list[int] = []
        ran: set[int] = set()
        for rank in np.flatnonzero(needs[self._forward :][order]).tolist():
            step = step_of[rank]
            if of_run and of_run[-1] != run_of[step]:
                ran = set()
            missing: set[int] = set()
            waiting = [tensor for tensor in self._reads[self._forward + step] if is_gone[tensor]]
            while waiting:
                maker = self._makers[waiting.pop()]
                if maker not in ran and maker not in missing:
                    missing.add(maker)
                    waiting += [tensor for tensor in self._reads[maker] if is_gone[tensor]]
            ran |= missing
            steps += sorted(missing)
            before += [rank] * len(missing)
            of_run += [run_of[step]] * len(missing)
        return _Rerun(np.array(steps, np.int64), np.array(before, np.int64), np.array(of_run, np.int64))

    def _counted(self, tensors: Iterable[TensorId]) -> list[int]:
        return [self._numbers[tensor] for tensor in tensors if tensor in self._numbers]

    def _events(self, gone: Flags, times: Ints, runs: Ints, rerun: "_Rerun", rerun_times: Ints) -> Events:
        """Collects the reads and writes of a step: what is gone is read from the run that made it again."""
        count = len(self._tensors)
        reads, writes = self._plain_reads, self._plain_writes
        read_rows, read_again = reads.take(rerun.steps)
        write_rows, write_again = writes.take(rerun.steps)
        return Events(
            np.concatenate([times[reads.rows], rerun_times[read_rows]]),
            np.concatenate(
                [
                    reads.values + count * runs[reads.rows] * gone[reads.values],
                    read_again + count * rerun.runs[read_rows] * gone[read_again],
                ]
            ),
            np.concatenate([times[writes.rows], rerun_times[write_rows]]),
            np.concatenate([writes.values, write_again + count * rerun.runs[write_rows]]),
        )

    def _add_up(self, events: Events, in_place: Flags) -> tuple[Bytes, Ints]:
        """Adds up what is alive at every time, and finds each buffer's last read."""
        count = len(in_place)
        most = max(events.read_buffers.max(initial=0), events.write_buffers.max(initial=0))
        last_reads = np.full(most + 1, -1)
        np.maximum.at(last_reads, events.read_buffers, events.read_times)
        written = (
            self._bytes[events.write_buffers % len(self._tensors)] if len(self._tensors) else np.zeros(0)
        )
        births = np.bincount(events.write_times, written, count)
        ends = np.maximum(last_reads[events.write_buffers], events.write_times)
        deaths = np.bincount(ends, written, count)
        # An op that works in place takes over an input of its output's size that it is the last to read.
        dying = last_reads[events.read_buffers] == events.read_times
        dying &= in_place[events.read_times]
        buffers, at = events.read_buffers[dying], events.read_times[dying]
        same = self._bytes[buffers % len(self._tensors)] == births[at] if len(buffers) else np.zeros(0, bool)
        reused = np.zeros(count)
        reused[at[same]] = births[at[same]]
        return np.cumsum(births - deaths) + deaths - reused, last_reads


@dataclass(frozen=True)
class _Rerun:
    """Forward steps that run again, in order: which, before which backward step of the order, in which run."""

    steps: Ints
    before: Ints
    runs: Ints


class _Rows:
    """Lists of numbers, one for each step, in one array."""

    def __init__(self, lists: list[list[int]]) -> None:
        self._lengths = np.array([len(numbers) for numbers in lists], np.int64)
        self._begins = np.cumsum(self._lengths) - self._lengths
        self.rows = np.repeat(np.arange(len(lists)), self._lengths)
        self.values = np.array([number for numbers in lists for number in numbers], np.int64)

    def take(self, steps: Ints) -> tuple[Ints, Ints]:
        """Returns the numbers of some steps, and for each which of these steps it belongs to."""
        lengths = self._lengths[steps]
        rows = np.repeat(np.arange(len(steps)), lengths)
        offsets = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return rows, self.values[self._begins[steps][rows] + offsets]
