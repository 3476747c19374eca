"""What steps were seen to take, and whether there is room for one of them now."""

from collections.abc import Callable, Hashable
from typing import Any

from memfit.budgets.budget import read_count
from memfit.budgets.peaks import PeakMeter, device_name
from memfit.sizes import Size
from memfit.training.guard.events import free


class Room:
    """The need of steps, each measured the first time that it succeeds.

    Attributes:
        need: What a step takes beside what is there before it, by the step's recipe.
    """

    def __init__(self) -> None:
        self.need: dict[Hashable, Size] = {}

    def measure(self, recipe: Hashable, run: Callable[[], Any]) -> Any:
        """Runs a step and returns its result, measuring it if it is the first one with this recipe."""
        if recipe in self.need:
            return run()
        result, self.need[recipe] = measure_need(run)
        return result

    def there_is(self, recipe: Hashable) -> bool:
        """Whether what is free now would be enough for a step that has found room before."""
        left = free()
        return left is not None and recipe in self.need and self.need[recipe] <= left


def measure_need(run: Callable[[], Any]) -> tuple[Any, Size]:
    """Runs something; returns its result, and what it took beside what was there: 0 where that is not counted."""
    device = device_name()
    with PeakMeter(device) as meter:
        count = read_count(device)
        result = run()
    return result, Size(0 if count is None else max(meter.peak - count.current, 0))
