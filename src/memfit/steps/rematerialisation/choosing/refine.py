"""Refining a choice of what to keep against the exact count of what is alive at every op.

It is changed one thing at a time, at the moment that has most: not to keep one tensor, to forget what was
recomputed until it is used again, to keep one again. Each change is counted op by op, as it will run.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from memfit.steps.rematerialisation.choosing.alive import Choice, Ledger, Usage
from memfit.steps.rematerialisation.trace import TensorId

# How many changes are compared at a time, and how many of them are made, as long as each is worth this part of what
# it is worth alone.
_COMPARED, _AT_ONCE, _STILL_WORTH = 40, 5, 0.5
# Cost per byte that classes of ops begin at: 2-3 is an elementwise op, up to 10 a softmax or a pooling, more a
# convolution or a matrix product.
_COST_CLASSES = (4.0, 12.0, 40.0)
# Tensors that it tries to keep again, the dearest first.
_KEPT_AGAIN = 20


def refine(ledger: Ledger, choice: Choice, aim: float) -> Choice | None:
    """Changes a choice until it stays below `aim` bytes, then lets go of recomputation that it does not need.

    Returns:
        The choice; None if no change leads on.
    """
    lower = _lower(ledger, choice, aim)
    return None if lower is None else _cheapen(ledger, lower, aim)


def _lower(ledger: Ledger, choice: Choice, aim: float) -> Choice | None:
    """Changes a choice, each time by what brings most for its cost, until it stays below the aim."""
    usage = ledger.count(choice)
    while usage.excess(aim) > 0:
        changes = chain(_list_changes(ledger, choice, usage), _list_double_changes(ledger, choice, usage))
        ranked: list[tuple[float, Choice]] = []
        while not ranked:
            compared = list(islice(changes, _COMPARED))
            if not compared:
                return None
            ranked = _rank(ledger, compared, usage, aim)
        for worth, change in ranked[:_AT_ONCE]:
            joined = choice.join(change)
            after = ledger.count(joined)
            if _find_worth(usage, after, aim) >= _STILL_WORTH * worth:
                choice, usage = joined, after
    return choice


def _cheapen(ledger: Ledger, choice: Choice, aim: float) -> Choice:
    """Keeps again what costs most to recompute, and joins segments, as far as that stays below the aim."""
    usage = ledger.count(choice)
    recomputed = sorted(
        ledger.list_recomputed(usage), key=lambda tensor: (-_cost_per_byte(ledger, tensor), tensor)
    )
    for tensor in recomputed[:_KEPT_AGAIN]:
        choice, usage = _take_if_cheaper(ledger, (choice, usage), choice.keeping(tensor), aim)
    for start in choice.starts:
        choice, usage = _take_if_cheaper(ledger, (choice, usage), choice.not_starting(start), aim)
    return choice


def _take_if_cheaper(
    ledger: Ledger, present: tuple[Choice, Usage], change: Choice, aim: float
) -> tuple[Choice, Usage]:
    usage = ledger.count(change)
    return (change, usage) if usage.cost < present[1].cost and usage.peak <= aim else present


def _rank(ledger: Ledger, changes: Sequence[Choice], usage: Usage, aim: float) -> list[tuple[float, Choice]]:
    """Lists the changes that lead on, each with its worth, the best first."""
    worths = [(_find_worth(usage, ledger.count(change), aim), change) for change in changes]
    return sorted((item for item in worths if item[0] > 0), key=lambda item: -item[0])


def _find_worth(before: Usage, after: Usage, aim: float) -> float:
    """Returns what a change brings for what it costs; what costs nothing comes first."""
    return (before.excess(aim) - after.excess(aim)) / max(after.cost - before.cost, 1.0)


def _list_changes(ledger: Ledger, choice: Choice, usage: Usage) -> Iterator[Choice]:
    """Yields changes that take something away from the largest moment, the cheapest for its bytes first."""
    time = usage.peak_time
    level = ledger.trace.ops[usage.ops[time]].level
    for run, tensor in _sort_idle(ledger, usage, time):
        if run == 0:
            if tensor in choice.kept:
                yield choice.without(tensor)
            continue
        # Recomputed before, and needed again later: forget it in between.
        next_use = ledger.trace.ops[ledger.find_next_use(usage, run, tensor, time)].level
        for start in dict.fromkeys((level, next_use + 1)):
            if 0 < start <= level and start not in choice.starts:
                yield choice.starting(start)


def _list_double_changes(ledger: Ledger, choice: Choice, usage: Usage) -> Iterator[Choice]:
    """Yields changes that do not keep a tensor, and forget what its recomputation leaves behind."""
    time = usage.peak_time
    level = ledger.trace.ops[usage.ops[time]].level
    for run, tensor in _sort_idle(ledger, usage, time):
        if run == 0 and tensor in choice.kept:
            for start in dict.fromkeys((tensor[0] + 1, tensor[0], level)):
                if 0 < start <= level and start not in choice.starts:
                    yield choice.without(tensor).starting(start)


def _sort_idle(ledger: Ledger, usage: Usage, time: int) -> list[tuple[int, TensorId]]:
    """Lists forward tensors that are alive at a time and not used then: cheap ones first, then large ones."""
    return sorted(
        ledger.list_idle(usage, time),
        key=lambda item: (
            bisect_right(_COST_CLASSES, _cost_per_byte(ledger, item[1])),
            -ledger.trace.size(item[1]),
            item,
        ),
    )


def _cost_per_byte(ledger: Ledger, tensor: TensorId) -> float:
    return ledger.trace.ops[tensor[0]].cost / max(1, ledger.trace.size(tensor))
