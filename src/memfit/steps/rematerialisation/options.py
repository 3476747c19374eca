"""The segments there are to choose from, each with what it keeps, holds and costs."""

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from memfit.steps.rematerialisation.peak import gradient_bytes
from memfit.steps.rematerialisation.recomputation import needs, source
from memfit.steps.rematerialisation.trace import Tensor, Trace

# A tensor below this share of all that the backward pass reads is always kept: means, variances, scales.
_SMALL = 1 / 2000
# Cost per byte above which an op's output is kept rather than computed again, from "keep all" to "keep nothing":
# 2-3 is an elementwise op, up to 10 a softmax or a pooling, more a convolution or a matrix product.
THRESHOLDS = (0.0, 4.0, 12.0, 40.0, 120.0, float("inf"))
# More places to cut than this, or longer segments, make the choice slow and hardly better.
_MOST_CUTS = 120
_LONGEST = 30


@dataclass(frozen=True)
class Option:
    """One way to treat the forward ops between two cuts.

    Attributes:
        inside: Tensors kept besides those alive at the cuts.
        keeps: Bytes that stay until the segment's backward pass, the end cut's included.
        holds: Further bytes while that backward pass runs: recomputed tensors and gradients.
        cost: What is computed again, in the unit of `Op.cost`.
    """

    inside: tuple[Tensor, ...]
    keeps: int
    holds: int
    cost: float

    def beats(self, other: "Option") -> bool:
        """Says whether this option is at least as good in everything, and better in something."""
        mine, theirs = (self.keeps, self.holds, self.cost), (other.keeps, other.holds, other.cost)
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


class Choices:
    """The large tensors of a trace, the cuts between its forward ops, and the options between cuts.

    Attributes:
        small: Forward tensors that are always kept.
        needed: For each forward op the large tensors that its backward ops read.
        alive: For each place before a forward op, the large tensors made before it and read at or after it.
        cuts: The places where segments may start and end, ascending.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._roots = {tensor: self.root(tensor) for op in trace.ops for tensor in op.inputs}
        read = {index: [self._roots[tensor] for tensor in needs(trace, index)] for index in trace.backward}
        total = sum(map(self.size, {tensor for tensors in read.values() for tensor in tensors}))
        self.small_bytes = int(_SMALL * total)
        self.small = frozenset(
            (index, number)
            for index, op in enumerate(trace.forward)
            for number, size in enumerate(op.sizes)
            if size <= self.small_bytes and not op.is_alias
        )
        self.needed: list[list[Tensor]] = [[] for _ in range(trace.forward_count + 1)]
        self._last_needed: dict[Tensor, int] = {}
        for index in trace.backward:
            level = trace.ops[index].level
            for tensor in self._large(read[index]):
                self.needed[level].append(tensor)
                self._last_needed[tensor] = min(level, self._last_needed.get(tensor, level))
        self._sources = {
            (index, number): self._large(self._roots[tensor] for tensor in op.inputs)
            for index, op in enumerate(trace.forward)
            for number in range(len(op.sizes))
        }
        self._per_byte = {
            (index, number): op.cost / max(1, size)
            for index, op in enumerate(trace.forward)
            for number, size in enumerate(op.sizes)
        }
        self._levels, self._gradients = self._busy_levels()
        self.alive = self._alive()
        self.cuts = self._cuts()

    def size(self, tensor: Tensor) -> int:
        return self.trace.ops[tensor[0]].sizes[tensor[1]] if tensor[0] >= 0 else 0

    def between(self, start: int, end: int) -> list[Option]:
        """Lists the options for the forward ops from cut number `start` to cut number `end`."""
        first, last = self.cuts[start], self.cuts[end]
        given = self.alive[first] | self.alive[last]
        boundary = sum(map(self.size, self.alive[last] - self.alive[first]))
        wanted = list(dict.fromkeys(tensor for tensors in self.needed[first:last] for tensor in tensors))
        found: dict[frozenset[Tensor], Option] = {}
        for threshold in THRESHOLDS:
            inside, ran = self._walk(wanted, given, threshold)
            if inside not in found:
                found[inside] = Option(
                    inside=tuple(inside),
                    keeps=boundary + sum(map(self.size, inside)),
                    holds=self._holds(first, last, ran),
                    cost=sum(self.trace.ops[index].cost for index in {index for index, _ in ran}),
                )
        return [option for option in found.values() if not any(o.beats(option) for o in found.values())]

    def _walk(
        self, wanted: list[Tensor], given: Collection[Tensor], threshold: float
    ) -> tuple[frozenset[Tensor], set[Tensor]]:
        """Walks back from what is wanted to the first tensors that cost more per byte than the threshold.

        Returns:
            The tensors to keep, and those to compute again from them.
        """
        kept: set[Tensor] = set()
        ran: set[Tensor] = set()
        waiting = [tensor for tensor in wanted if tensor not in given]
        while waiting:
            tensor = waiting.pop()
            if tensor in kept or tensor in ran:
                continue
            sources = [source for source in self._sources[tensor] if source not in given]
            # What an expensive op made and a cheap one of the same size turned into the tensor wanted (a bias
            # added to a convolution) is as large as the tensor itself: keep the tensor.
            worth_keeping = (
                len(sources) == 1
                and self._per_byte[sources[0]] > threshold
                and self.size(sources[0]) >= self.size(tensor)
                and tensor in wanted
                and sources[0] not in wanted
            )
            if worth_keeping or self._per_byte[tensor] > threshold:
                kept.add(tensor)
            else:
                ran.add(tensor)
                waiting += sources
        return frozenset(kept), ran

    def _holds(self, first: int, last: int, ran: set[Tensor]) -> int:
        """The most that recomputed tensors and gradients take together in a segment's backward pass."""
        most = total = 0
        there: set[Tensor] = set()
        inside = slice(bisect_left(self._levels, first), bisect_left(self._levels, last))
        for level, (during, after) in zip(
            self._levels[inside][::-1], self._gradients[inside][::-1], strict=True
        ):
            ending = []
            for tensor in self.needed[level]:
                waiting = [tensor]
                while waiting:
                    made = waiting.pop()
                    if made in ran and made not in there:
                        there.add(made)
                        waiting += self._sources[made]
                        # What no backward op reads is gone, or overwritten in place, at once.
                        total += self.size(made) if made in self._last_needed else 0
                if tensor in ran and self._last_needed[tensor] == level:
                    ending.append(tensor)
            most = max(most, total + during)
            total -= sum(map(self.size, set(ending)))
            most = max(most, total + after)
        return most

    def _busy_levels(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Lists forward ops whose backward ops read large tensors, and what gradients take in and after it."""
        of_op = gradient_bytes(self.trace)
        levels = [level for level, tensors in enumerate(self.needed) if tensors]
        starts = [0, *(level + 1 for level in levels[:-1])]
        return levels, [
            (of_op[level], max(of_op[start:level], default=0))
            for start, level in zip(starts, levels, strict=True)
        ]

    def _large(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Picks the tensors there is a choice about: large ones that can be computed again."""
        return [
            tensor
            for tensor in tensors
            if tensor[0] >= 0 and tensor not in self.small and self.trace.ops[tensor[0]].recomputable
        ]

    def root(self, tensor: Tensor) -> Tensor:
        while tensor[0] >= 0 and self.trace.ops[tensor[0]].is_alias:
            tensor = source(self.trace, tensor)
        return tensor

    def _alive(self) -> list[frozenset[Tensor]]:
        last_read: dict[Tensor, int] = {}
        for index, op in enumerate(self.trace.forward):
            if op.reads_values:
                last_read.update(
                    dict.fromkeys(self._large(self._roots[tensor] for tensor in op.inputs), index)
                )
        made: dict[int, set[Tensor]] = {}
        ends: dict[int, set[Tensor]] = {}
        for tensor, index in last_read.items():
            made.setdefault(tensor[0], set()).add(tensor)
            ends.setdefault(index, set()).add(tensor)
        alive: list[frozenset[Tensor]] = [frozenset()]
        for index in range(self.trace.forward_count):
            alive.append((alive[-1] | made.get(index, set())) - ends.get(index, set()))
        return alive

    def _cuts(self) -> list[int]:
        """The places worth cutting at: where what is alive changes, the smallest of their neighbourhood first."""
        places: dict[frozenset[Tensor], int] = {}
        for place in range(1, self.trace.forward_count):
            if self.alive[place]:
                places.setdefault(self.alive[place], place)
        sums = {place: sum(map(self.size, tensors)) for tensors, place in places.items()}
        order = sorted(sums)
        rank = {
            place: sums[place] / max(sums[other] for other in order[max(0, number - 3) : number + 4])
            for number, place in enumerate(order)
        }
        best = sorted(order, key=lambda place: (rank[place], place))[:_MOST_CUTS]
        return [0, *sorted(best), self.trace.forward_count]


def options_by_start(choices: Choices) -> dict[int, list[tuple[int, Option]]]:
    """Lists for each cut the segments that start there: the cut each ends at, and how it is treated."""
    count = len(choices.cuts)
    return {
        start: [
            (end, option)
            for end in range(start + 1, min(count, start + 1 + _LONGEST))
            for option in choices.between(start, end)
        ]
        for start in range(count - 1)
    }
