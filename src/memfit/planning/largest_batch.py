"""The largest batch for which something holds."""

from collections.abc import Callable

# The largest that is looked for: with micro-batches, and inputs on the host, nothing else may bound a batch.
LARGEST = 2**14


def find_largest_batch(fits: Callable[[int], bool], at_most: int | None = None) -> int:
    """Finds it, to within 2%, as predictions are no finer.

    Args:
        fits: Whether it holds for a batch; where it does, it does for smaller ones.
        at_most: Where to end; None for `LARGEST`.

    Returns:
        The batch, or 0 where it does not even hold for 1.
    """
    end = LARGEST if at_most is None else at_most
    if fits(end):
        return end
    if end == 1 or not fits(1):
        return 0
    low, high = 1, 2
    while high < end and fits(high):
        low, high = high, 2 * high
    high = min(high, end)
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
