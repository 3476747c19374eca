"""The segments there are to choose from, each with what it keeps, holds and costs."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from memfit.steps.rematerialisation.choosing.alive import Ledger
from memfit.steps.rematerialisation.trace import TensorId, Trace

# A tensor below this share of all that the backward pass reads is always kept: means, variances, scales.
_SMALL = 1 / 2000
# Cost per byte above which an op's output is kept rather than computed again, from "keep all" to "keep nothing":
# 2-3 is an elementwise op, up to 10 a softmax or a pooling, more a convolution or a matrix product.
THRESHOLDS = (0.0, 4.0, 12.0, 40.0, float("inf"))
# More places to cut than this, or longer segments, make the choice slow and hardly better.
_MOST_CUTS = 60
_LONGEST = 30


@dataclass(frozen=True)
class Option:
    """One way to treat the forward ops between two cuts.

    Attributes:
        end: The number of the cut at which the segment ends.
        inside: Tensors kept besides those alive at the cuts.
        keeps: Bytes that stay until the segment's backward pass, the end cut's included.
        holds: Further bytes while that backward pass runs: recomputed tensors and gradients.
        cost: What is computed again, in the unit of `TracedOp.cost`.
    """

    end: int
    inside: frozenset[TensorId]
    keeps: int
    holds: int
    cost: float

    def beats(self, other: "Option") -> bool:
        """Says whether this option is at least as good in everything, and better in something."""
        mine, theirs = (self.keeps, self.holds, self.cost), (other.keeps, other.holds, other.cost)
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


class Cuts:
    """The large tensors of a trace, and the cuts between its forward ops.

    Attributes:
        small_bytes: Tensors up to this size are small.
        small: Forward tensors that are always kept.
        all_large: The large tensors that the backward pass reads.
        alive: For each place before a forward op, the large tensors made before it and read at or after it.
        places: Where segments may start and end: before which forward ops, ascending.
    """

    def __init__(self, trace: Trace, ledger: Ledger) -> None:
        self._trace = trace
        roots = {tensor: trace.root(tensor) for op in trace.ops for tensor in op.inputs}
        reads = {index: [roots[tensor] for tensor in trace.list_needs(index)] for index in trace.backward}
        total = sum(map(trace.size, {tensor for tensors in reads.values() for tensor in tensors}))
        self.small_bytes = int(_SMALL * total)
        self.small = frozenset(
            (index, number)
            for index, op in enumerate(trace.forward)
            for number, size in enumerate(op.sizes)
            if size <= self.small_bytes and not op.is_alias
        )
        self._needed: list[list[TensorId]] = [[] for _ in range(trace.forward_count + 1)]
        self._last_needed: dict[TensorId, int] = {}
        for index in trace.backward:
            level = trace.ops[index].level
            for tensor in self._pick_large(reads[index]):
                self._needed[level].append(tensor)
                self._last_needed[tensor] = min(level, self._last_needed.get(tensor, level))
        self.all_large = frozenset(self._last_needed)
        self._sources: dict[TensorId, list[TensorId]] = {}
        self._cost_per_byte: dict[TensorId, float] = {}
        for index, op in enumerate(trace.forward):
            sources = self._pick_large(roots[tensor] for tensor in op.inputs)
            for number, size in enumerate(op.sizes):
                self._sources[index, number] = sources
                self._cost_per_byte[index, number] = op.cost / max(1, size)
        self._levels = [level for level, tensors in enumerate(self._needed) if tensors]
        self._gradients = self._find_gradients(ledger)
        self.alive = self._find_alive(roots)
        self.places = self._find_places()

    def list_options(self) -> list[list[Option]]:
        """Lists for each cut the ways to treat each segment that starts there."""
        count = len(self.places)
        return [
            [
                option
                for end in range(start + 1, min(count, start + 1 + _LONGEST))
                for option in self._list_options(start, end)
            ]
            for start in range(count - 1)
        ]

    def _list_options(self, start: int, end: int) -> list[Option]:
        """Lists the options for the forward ops from one cut to another that no other option beats."""
        first, last = self.places[start], self.places[end]
        given = self.alive[first] | self.alive[last]
        boundary = self._add_sizes(self.alive[last] - self.alive[first])
        wanted = {tensor for tensors in self._needed[first:last] for tensor in tensors}
        options: dict[frozenset[TensorId], Option] = {}
        changes_at = 0.0  # the threshold from which on something else is kept
        for threshold in THRESHOLDS:
            if threshold < changes_at:
                continue
            inside, rerun, changes_at = self._walk(wanted, given, threshold)
            if inside not in options:
                options[inside] = Option(
                    end=end,
                    inside=inside,
                    keeps=boundary + self._add_sizes(inside),
                    holds=self._find_held(first, last, rerun),
                    cost=sum(self._trace.ops[index].cost for index in {index for index, _ in rerun}),
                )
        return [
            option
            for option in options.values()
            if not any(other.beats(option) for other in options.values())
        ]

    def _walk(
        self, wanted: set[TensorId], given: frozenset[TensorId], threshold: float
    ) -> tuple[frozenset[TensorId], set[TensorId], float]:
        """Walks back from what is wanted to the first tensors that cost more per byte than the threshold.

        Returns:
            The tensors to keep, those to compute again from them, and the smallest cost per byte for which one was
            kept: with a threshold below it the result is the same.
        """
        per_byte = self._cost_per_byte
        kept: set[TensorId] = set()
        rerun: set[TensorId] = set()
        smallest = float("inf")
        waiting = list(wanted - given)
        while waiting:
            tensor = waiting.pop()
            if tensor in kept or tensor in rerun:
                continue
            cost = per_byte[tensor]
            sources = [source for source in self._sources[tensor] if source not in given]
            # What an expensive op made and a cheap one of the same size turned into the tensor wanted (a bias
            # added to a convolution) is as large as the tensor itself: keep the tensor.
            if (
                len(sources) == 1
                and per_byte[sources[0]] > threshold
                and tensor in wanted
                and sources[0] not in wanted
                and self._trace.size(sources[0]) >= self._trace.size(tensor)
            ):
                cost = max(cost, per_byte[sources[0]])
            if cost > threshold:
                kept.add(tensor)
                smallest = min(smallest, cost)
            else:
                rerun.add(tensor)
                waiting += sources
        return frozenset(kept), rerun, smallest

    def _find_held(self, first: int, last: int, rerun: set[TensorId]) -> int:
        """Returns the most that recomputed tensors and gradients take together in a segment's backward pass."""
        most = total = 0
        there: set[TensorId] = set()
        inside = slice(bisect_left(self._levels, first), bisect_left(self._levels, last))
        for level, (during, after) in zip(
            self._levels[inside][::-1], self._gradients[inside][::-1], strict=True
        ):
            waiting = [tensor for tensor in self._needed[level] if tensor in rerun]
            ending = {tensor for tensor in waiting if self._last_needed[tensor] == level}
            while waiting:
                tensor = waiting.pop()
                if tensor in rerun and tensor not in there:
                    there.add(tensor)
                    waiting += self._sources[tensor]
                    # What no backward op reads is gone, or overwritten in place, at once.
                    total += self._trace.size(tensor) if tensor in self._last_needed else 0
            most = max(most, total + during)
            total -= self._add_sizes(ending)
            most = max(most, total + after)
        return most

    def _add_sizes(self, tensors: Iterable[TensorId]) -> int:
        return sum(map(self._trace.size, tensors))

    def _find_gradients(self, ledger: Ledger) -> list[tuple[int, int]]:
        """For each level that needs large tensors: what gradients take in it, and after it till the next."""
        of_op = ledger.count_gradients()
        return [
            (of_op[level], max(of_op[before + 1 : level], default=0))
            for before, level in pairwise([-1, *self._levels])
        ]

    def _pick_large(self, tensors: Iterable[TensorId]) -> list[TensorId]:
        """Picks the tensors there is a choice about: large ones that can be computed again."""
        return [
            tensor
            for tensor in tensors
            if tensor[0] >= 0 and tensor not in self.small and self._trace.ops[tensor[0]].recomputable
        ]

    def _find_alive(self, roots: dict[TensorId, TensorId]) -> list[frozenset[TensorId]]:
        """Finds for each place before a forward op the large tensors made before it and read at or after it."""
        last_read: dict[TensorId, int] = {}
        for index, op in enumerate(self._trace.forward):
            if op.reads_values:
                for tensor in self._pick_large(roots[tensor] for tensor in op.inputs):
                    last_read[tensor] = index
        begins: dict[int, set[TensorId]] = {}
        ends: dict[int, set[TensorId]] = {}
        for tensor, index in last_read.items():
            begins.setdefault(tensor[0], set()).add(tensor)
            ends.setdefault(index, set()).add(tensor)
        alive: list[frozenset[TensorId]] = [frozenset()]
        for index in range(self._trace.forward_count):
            alive.append((alive[-1] | begins.get(index, set())) - ends.get(index, set()))
        return alive

    def _find_places(self) -> list[int]:
        """Finds the places worth cutting at: where what is alive changes, the smallest of their neighbourhood."""
        places: dict[frozenset[TensorId], int] = {}
        for place in range(1, self._trace.forward_count):
            if self.alive[place]:
                places.setdefault(self.alive[place], place)
        sizes = {place: self._add_sizes(tensors) for tensors, place in places.items()}
        order = sorted(sizes)
        rank = {
            place: sizes[place] / max(sizes[other] for other in order[max(0, number - 3) : number + 4])
            for number, place in enumerate(order)
        }
        best = sorted(order, key=lambda place: (rank[place], place))[:_MOST_CUTS]
        return [0, *sorted(best), self._trace.forward_count]
