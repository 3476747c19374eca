"""`make fuzz-peaks`: predicted against measured peaks of random networks, at 1/4 to 16 times the batch asked about.

    python benchmarks/fuzz/peaks.py --networks 100 --seed 1

Each network is estimated once, for a batch of 1024, and then asked about the others. Measured is stock Keras, five
steps in an arena, and five more to see how far steps are apart: threads run ops in another order in every one. Then
once more in an arena of what is said to be needed. Precision goes round: float32,
mixed_bfloat16, float64. Rows are kept: the next run goes on behind them.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hypothesis import HealthCheck, Phase, given, seed, settings

import memfit
from fuzz.networks import Network, build, data, networks
from machine import RESULTS, SMOKE, isolated, write
from memfit.tables import table

BATCH = 8 if SMOKE else 1024
TIMES = (1,) if SMOKE else (0.25, 1, 4, 16)
STEPS = 5  # a predicted peak is the largest of so many steps
NOISY = 0.1
PRECISIONS = ("float32", "mixed_bfloat16", "float64")
MIB = 2**20
NAME = "fuzz-peaks"
# Trainings of less are left out of the figures: of them all, one small array more or less is a tenth.
LEAST = 0 if SMOKE else 8 * MIB


def compiled(network: Network, precision: str) -> Any:
    """Builds a network in a precision."""
    import keras

    keras.config.set_floatx("float64" if precision == "float64" else "float32")
    keras.config.set_dtype_policy(precision)
    return build(network)


def make_batch(network: Network, batch: int) -> Any:
    """Makes the arrays of a batch as `fit` hands them over, in Keras's default type.

    They lie so that TensorFlow copies them into the arena always, and not just if they happen to lie otherwise.
    """
    import keras

    from memfit.estimation.recording.batches import misaligned

    def convert(array: Any) -> Any:
        is_float = array.dtype.kind == "f"
        return misaligned(array.astype(keras.config.floatx()) if is_float else array)

    arrays = data({**network, "batch": batch + 1}, 1)  # its last batch is one sample shorter
    return keras.tree.map_structure(lambda array: None if array is None else convert(array), arrays)


def measure(network: Network, precision: str, batch: int) -> list[int]:
    """Trains some steps in the arena, in a process of its own; returns the peaks of the steps.

    What earlier trainings leave in an allocator changes how it cuts its memory, and so what it counts as used.
    """
    import tensorflow as tf

    model = compiled(network, precision)
    x, y, weights = make_batch(network, batch)
    peaks = []
    for _ in range(2 * STEPS):
        tf.config.experimental.reset_memory_stats("CPU:0")
        model.train_on_batch(x, y, sample_weight=weights)
        peaks.append(int(tf.config.experimental.get_memory_info("CPU:0")["peak"]))
    return peaks


def compare(network: Network, precision: str) -> dict[str, Any]:
    """Predicts and measures a network; what failed is in the row, too."""
    batches = [int(times * BATCH) for times in TIMES]
    row: dict[str, Any] = {"network": network, "precision": precision, "batches": batches}
    try:
        model = compiled(network, precision)
        estimate = memfit.estimate(model, BATCH, data=data({**network, "batch": BATCH}, 1))
        predicted = [estimate.at(batch) for batch in batches]
        row["predicted"] = [int(each.peak) for each in predicted]
        row["margin"] = [round(each.margin, 4) for each in predicted]
        runs = [isolated(measure, network, precision, batch, memory="8GiB") for batch in batches]
    except (
        Exception
    ) as error:  # a network that stock Keras does not train, or a finding: the table counts them
        row["failure"] = f"{type(error).__name__}: {error}"[:300]
        return row
    row["measured"] = [max(peaks[:STEPS]) for peaks in runs]
    row["noise"] = [round(max(peaks[1:]) / min(peaks[1:]) - 1, 4) for peaks in runs]
    row["error"] = [p / m - 1 for p, m in zip(row["predicted"], row["measured"], strict=True)]
    try:
        isolated(measure, network, precision, BATCH, memory=max(2 * MIB, int(estimate.prediction.needed)))
        row["capped"] = "completes"
    except Exception as error:  # running out is what is counted here, and the other rows are still measured
        row["capped"] = f"{type(error).__name__}"
    return row


def draw(count: int, start: int) -> list[Network]:
    """Draws networks."""
    drawn: list[Network] = []

    @seed(start)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(networks())
    def keep(network: Network) -> None:
        drawn.append(network)

    keep()
    return drawn


def summarise(rows: list[dict[str, Any]]) -> str:
    """Returns the figures of all rows as a table."""
    done = [row for row in rows if "error" in row]
    lines: list[list[object]] = []
    for calm in (True, False):
        for place, times in enumerate(TIMES):
            errors = sorted(
                abs(row["error"][place])
                for row in done
                if row["measured"][place] >= LEAST and (row["noise"][place] <= NOISY) is calm
            )
            if errors:
                high = errors[min(len(errors) - 1, int(0.95 * len(errors)))]
                figures = (statistics.median(errors), high, errors[-1])
                kind = "steps alike" if calm else f"steps {NOISY:.0%} apart"
                lines.append([f"{times:g}x", kind, len(errors), *(f"{figure:.1%}" for figure in figures)])
    head = ["batch", "", "networks", "median error", "95th percentile", "largest"]
    text = table(lines, head=head, right=[2, 3, 4, 5])
    complete = sum(row["capped"] == "completes" for row in done)
    margins = [row["margin"][at] for row in done for at in range(len(TIMES)) if row["measured"][at] >= LEAST]
    average = f", margin {statistics.mean(margins):.1%} on average" if margins else ""
    failed = len(rows) - len(done)
    return (
        f"{text}\n{len(done)} networks; capped at what is needed {complete} complete{average}; "
        f"{failed} were not predicted or not trained"
    )


def make_rows(
    name: str, about: str | None, first_seed: int, compare: Callable[[Network, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Makes the rows of a table of random networks, behind those that are in its results already.

    Args:
        name: The file of the results.
        about: What `--help` says.
        first_seed: The seed of the networks, unless the command line has another.
        compare: Makes the row of a network with a number.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", type=int, default=1 if SMOKE else 100)
    parser.add_argument("--seed", type=int, default=first_seed)
    options = parser.parse_args()
    file = RESULTS / f"{name}.json"
    kept = json.loads(file.read_text())["figures"] if file.exists() else {}
    rows: list[dict[str, Any]] = kept["rows"] if kept.get("seed") == options.seed else []
    for number, network in enumerate(draw(options.networks, options.seed)):
        if number >= len(rows):
            rows.append(compare(network, number))
            write(name, {"seed": options.seed, "rows": rows})
            shown = {key: value for key, value in rows[-1].items() if key != "network"}
            print(number + 1, json.dumps(shown), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Goes on behind the rows that are there."""
    rows = make_rows(
        NAME, __doc__, 1, lambda network, number: compare(network, PRECISIONS[number % len(PRECISIONS)])
    )
    print(summarise(rows))
    print("Wanted: median 3%, 95th percentile 12%, none beyond 30%, 97% complete, margin 12% on average.")
    print(f"Written to {RESULTS / NAME}.json")


if __name__ == "__main__":
    main()
