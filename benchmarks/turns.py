"""Timing ways to train one model, in turn, in one process, with stock Keras twice: two runs of it differ, too."""

import statistics
import time
from collections.abc import Callable

AGAIN = "stock again"


def take_turns(ways: dict[str, Callable[[], object]], rounds: int, steps: int) -> dict[str, float]:
    """Calls each way once to trace it, then all of them in turn.

    Args:
        ways: What to call for each name; `stock` has to be one of them.
        rounds: How often.
        steps: Training steps in a call.

    Returns:
        For `stock` the median seconds of a step; for the others, and for a second call of stock in each round, the
        median of the rounds' ratios to it.
    """
    calls = ways | {AGAIN: ways["stock"]}
    for call in ways.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        names = sorted(calls)
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            begin = time.perf_counter()
            calls[name]()
            seconds[name].append((time.perf_counter() - begin) / steps)
    ratios = {
        name: statistics.median(one / stock for one, stock in zip(taken, seconds["stock"], strict=True))
        for name, taken in seconds.items()
    }
    return ratios | {"stock": statistics.median(seconds["stock"])}
