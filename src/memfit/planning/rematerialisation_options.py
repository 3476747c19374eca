"""The segments there are to choose from, each with what it keeps, holds and costs."""

from collections.abc import Collection
from dataclasses import dataclass

from memfit.planning.rematerialisation_recomputation import again, is_available, needs, source
from memfit.planning.rematerialisation_trace import Tensor, Trace

# A tensor below this share of all that the backward pass reads is always kept: means, variances, scales.
_SMALL = 1 / 2000
# Cost per byte above which an op's output is kept rather than computed again, from "keep all" to "keep nothing":
# 2-3 is an elementwise op, up to 10 a softmax or a pooling, more a convolution or a matrix product.
_THRESHOLDS = (0.0, 4.0, 12.0, 40.0, 120.0, float("inf"))
# More places to cut than this make the choice slow and hardly better.
_MOST_CUTS = 120
_LONGEST = 40


@dataclass(frozen=True)
class Option:
    """One way to treat the forward ops between two cuts.

    Attributes:
        inside: Tensors kept besides those alive at the cuts.
        keeps: Bytes that stay until the segment's backward pass, the end cut's included.
        holds: Further bytes while that backward pass runs.
        cost: What is computed again, in the unit of `Op.cost`.
    """

    inside: tuple[Tensor, ...]
    keeps: int
    holds: int
    cost: float


class Choices:
    """A trace's cuts and the options between them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.root = {tensor: self._root(tensor) for op in trace.ops for tensor in op.inputs}
        self.needed: list[list[Tensor]] = [[] for _ in range(trace.forward_count + 1)]
        for index in trace.backward:
            op = trace.ops[index]
            self.needed[op.level] += [self.root[tensor] for tensor in needs(trace, [index])]
        everything = {tensor for tensors in self.needed for tensor in tensors}
        self.least = _SMALL * sum(self.size(tensor) for tensor in everything)
        self.small = frozenset(
            (index, number)
            for index, op in enumerate(trace.forward)
            for number, size in enumerate(op.sizes)
            if size <= self.least and not op.is_alias
        )
        self.alive = self._alive()
        self.cuts = self._cuts()

    def size(self, tensor: Tensor) -> int:
        return self.trace.ops[tensor[0]].sizes[tensor[1]] if tensor[0] >= 0 else 0

    def between(self, start: int, end: int) -> list[Option]:
        """Lists the options for the forward ops from cut number `start` to cut number `end`."""
        first, last = self.cuts[start], self.cuts[end]
        entering, leaving = self.alive[first], self.alive[last]
        wanted = list(dict.fromkeys(t for tensors in self.needed[first:last] for t in tensors))
        workspace = 2 * max((self.size(tensor) for tensor in wanted), default=0)
        boundary = sum(self.size(tensor) for tensor in leaving - entering)
        options: dict[frozenset[Tensor], Option] = {}
        for threshold in _THRESHOLDS:
            inside = self._frontier(wanted, entering | leaving, threshold)
            if inside in options:
                continue
            kept = inside | entering | leaving | self.small
            ran = again(self.trace, kept, wanted)
            held = sum(self.size(tensor) for tensor in wanted if tensor[0] in ran and tensor not in kept)
            options[inside] = Option(
                inside=tuple(sorted(inside)),
                keeps=boundary + sum(self.size(tensor) for tensor in inside),
                holds=held + workspace,
                cost=sum(self.trace.ops[index].cost for index in ran),
            )
        found = list(options.values())
        return [
            option
            for option in found
            if not any(
                other is not option
                and other.keeps <= option.keeps
                and other.holds <= option.holds
                and other.cost <= option.cost
                and (other.keeps, other.holds, other.cost) != (option.keeps, option.holds, option.cost)
                for other in found
            )
        ]

    def _frontier(
        self, wanted: list[Tensor], given: Collection[Tensor], threshold: float
    ) -> frozenset[Tensor]:
        """Walks back from what is wanted to the first tensors that cost more per byte than the threshold."""
        found: set[Tensor] = set()
        seen: set[Tensor] = set()
        stop = self.small | frozenset(given)
        waiting = list(wanted)
        while waiting:
            tensor = waiting.pop()
            if tensor in seen or is_available(self.trace, stop, tensor):
                continue
            seen.add(tensor)
            op = self.trace.ops[tensor[0]]
            sources = [self.root[source] for source in op.inputs]
            through = [source for source in sources if not is_available(self.trace, stop, source)]
            # What an expensive op made and a cheap op of the same size turned into the tensor wanted (a bias
            # added to a convolution) is as large as the tensor itself: keep that.
            expensive = [self._per_byte(source) > threshold for source in through]
            if self._per_byte(tensor) > threshold or (
                any(expensive)
                and len(through) == 1
                and tensor in wanted
                and through[0] not in wanted
                and self.size(through[0]) >= self.size(tensor)
            ):
                found.add(tensor)
                continue
            waiting += through
        return frozenset(found)

    def _per_byte(self, tensor: Tensor) -> float:
        return self.trace.ops[tensor[0]].cost / max(1, self.size(tensor))

    def _root(self, tensor: Tensor) -> Tensor:
        while tensor[0] >= 0 and self.trace.ops[tensor[0]].is_alias:
            tensor = source(self.trace, tensor)
        return tensor

    def _alive(self) -> list[frozenset[Tensor]]:
        """For each place before a forward op, the large tensors made before it and read after it."""
        last_read: dict[Tensor, int] = {}
        for index, op in enumerate(self.trace.forward):
            for tensor in op.inputs:
                last_read[self.root[tensor]] = index
        made: dict[int, list[Tensor]] = {}
        ends: dict[int, list[Tensor]] = {}
        for tensor, index in last_read.items():
            if tensor[0] >= 0 and self.trace.ops[tensor[0]].recomputable and tensor not in self.small:
                made.setdefault(tensor[0], []).append(tensor)
                ends.setdefault(index, []).append(tensor)
        alive: list[frozenset[Tensor]] = [frozenset()]
        for index in range(self.trace.forward_count):
            alive.append((alive[-1] | set(made.get(index, ()))) - set(ends.get(index, ())))
        return alive

    def _cuts(self) -> list[int]:
        """The places worth cutting at: where what is alive changes, at the smallest sums nearby."""
        places: dict[frozenset[Tensor], int] = {}
        for place in range(1, self.trace.forward_count):
            if self.alive[place]:
                places.setdefault(self.alive[place], place)
        sums = sorted((sum(map(self.size, tensors)), place) for tensors, place in places.items())
        order = sorted(place for _, place in sums)
        bytes_at = {place: total for total, place in sums}
        # A place is worth more the less is alive at it compared with its neighbourhood.
        rank: dict[int, float] = {}
        for number, place in enumerate(order):
            near = order[max(0, number - 3) : number + 4]
            rank[place] = bytes_at[place] / max(bytes_at[other] for other in near)
        best = sorted(order, key=lambda place: (rank[place], place))[:_MOST_CUTS]
        return [0, *sorted(best), self.trace.forward_count]


def table_of_options(choices: Choices) -> dict[int, list[tuple[int, Option]]]:
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
