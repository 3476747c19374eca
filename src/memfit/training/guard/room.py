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
        self._device = device_name()
        self.need: dict[Hashable, Size] = {}

    def measure(self, recipe: Hashable, run: Callable[[], Any]) -> Any:
        """Runs a step and returns its result, measuring it if it is the first one with this recipe."""
        if recipe in self.need:
            return run()
        with PeakMeter(self._device) as meter:
            count = read_count(self._device)
            before = 0 if count is None else count.current
            result = run()
        self.need[recipe] = Size(max(meter.peak - before, 0))
        return result

    def there_is(self, recipe: Hashable) -> bool:
        """Whether what is free now would be enough for a step that has found room before."""
        left = free()
        return left is not None and recipe in self.need and self.need[recipe] <= left
