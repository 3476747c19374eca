"""The largest batch that trains in an arena: stock Keras by trial runs, memfit by its plan.

Every trial is two steps in a fresh process in the arena. What memfit plans is trained there too, so that a batch
counts only if it really runs. Names of models on the command line choose some of them.

To keep this benchmark short, stock's trials start at the estimate's figure. What a user would need who doubles
from 1 and then bisects follows from the batch found: that many trials, at the mean time of those that were run.
"""

import sys
import time
from collections.abc import Callable
from statistics import fmean
from typing import Any

import memfit
from machine import write
from memfit.tables import table
from models import compiled, data

MEMORY = {"MobileNetV2": "512MiB", "U-Net": "512MiB", "ResNet50": "1GiB", "VGG19": "1536MiB"}
STEPS = 2


def stock_trains(name: str, batch: int) -> None:
    """Trains two steps as stock Keras does; runs in the arena."""
    model = compiled(name)
    model.fit(*data(model, STEPS * batch), batch_size=batch, verbose=0)


def planned(name: str, allow: str) -> tuple[memfit.Plan, float]:
    """Plans the largest batch and returns the plan and the seconds it took."""
    model = compiled(name)
    begun = time.perf_counter()
    return memfit.plan(model, "max", memory=MEMORY[name], allow=allow), time.perf_counter() - begun


def memfit_trains(name: str, plan: memfit.Plan) -> float:
    """Trains two steps with a plan; runs in the arena. Returns the measured peak over the predicted one."""
    model = compiled(name)
    history = memfit.fit(model, *data(model, STEPS * plan.batch_size), plan=plan, verbose=0)
    return history.memory.measured / history.memory.predicted


def works(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Returns what a trial in the arena gives, or None where it runs out of memory or dies of it."""
    import tensorflow as tf

    try:
        result = memfit.isolated(function, name, *args, memory=MEMORY[name])
    except (tf.errors.ResourceExhaustedError, memfit.ProcessDied):
        return None
    return True if result is None else result


class Trials:
    """Trial runs of stock Keras, with their times by outcome."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds: dict[bool, list[float]] = {True: [], False: []}

    def fits(self, batch: int) -> bool:
        begun = time.perf_counter()
        fits = works(self.name, stock_trains, batch) is not None
        self.seconds[fits].append(time.perf_counter() - begun)
        return fits

    def largest(self, guess: int) -> int:
        """The largest batch that trains, to within a sixteenth."""
        low, high = 0, guess
        while self.fits(high):
            low, high = high, max(high + 1, high * 5 // 4)
        while low == 0 and high > 1:
            middle = max(1, high * 4 // 5)
            low, high = (middle, high) if self.fits(middle) else (0, middle)
        return bisected(low, high, self.fits)

    def as_a_user(self, largest: int) -> tuple[int, float]:
        """How many trials doubling from 1 and bisecting takes, and their seconds."""
        outcomes: list[bool] = []

        def fits(batch: int) -> bool:
            outcomes.append(batch <= largest)
            return outcomes[-1]

        low, high = 0, 1
        while fits(high):
            low, high = high, 2 * high
        bisected(low, high, fits)
        return len(outcomes), sum(fmean(self.seconds[outcome] or [0.0]) for outcome in outcomes)


def bisected(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Bisects to within a sixteenth; `low` fits and `high` does not."""
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def by_trials(name: str) -> tuple[int, int, float]:
    """Returns stock's largest batch, and the trials and seconds that a user would need to find it."""
    trials = Trials(name)
    largest = trials.largest(memfit.estimate(compiled(name), 32).max_batch(MEMORY[name]) or 1)
    return largest, *trials.as_a_user(largest)


def main() -> None:
    """Measures the models named, or all of them."""
    figures: list[dict[str, Any]] = []
    for name in sys.argv[1:] or MEMORY:
        stock, trials, seconds = by_trials(name)
        row: dict[str, Any] = {
            "model": name,
            "memory": MEMORY[name],
            "stock": stock,
            "trials_of_a_user": trials,
            "seconds_of_a_user": seconds,
        }
        for allow in ("exact", "near"):
            plan, seconds = planned(name, allow)
            ratio = works(name, memfit_trains, plan)
            row[allow] = {
                "batch": plan.batch_size,
                "ratio": plan.batch_size / stock,
                "plan_seconds": seconds,
                "trains": ratio is not None,
                "measured_over_predicted": ratio,
            }
        figures.append(row)
        print(row, file=sys.stderr)
    rows = [
        [
            row["model"],
            row["memory"],
            row["stock"],
            *(
                f"{row[a]['batch']} ({row[a]['ratio']:.1f}x){'' if row[a]['trains'] else ' OOM'}"
                for a in ("exact", "near")
            ),
            f"{row['trials_of_a_user']} in {row['seconds_of_a_user']:.0f} s",
            f"{row['exact']['plan_seconds']:.0f} s",
        ]
        for row in figures
    ]
    print(
        table(
            rows, head=["model", "arena", "stock", "exact", "near", "trials", "plan"], right=[2, 3, 4, 5, 6]
        )
    )
    print("written to", write("largest_batch", figures))


if __name__ == "__main__":
    main()
