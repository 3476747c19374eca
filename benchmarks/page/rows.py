"""The rows of each table in docs/benchmarks.md, from the figures of a result file."""

from statistics import median
from typing import Any

Row = tuple[str, ...]


def _x(value: float) -> str:
    return f"{value:.2f}x"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def list_estimates(figures: Any) -> list[Row]:
    """The 40 trainings, summed up."""
    told = figures["summary"]
    return [
        ("trainings", str(told["cases"])),
        ("error of the predicted peak, median", _percent(told["median_error"])),
        ("the same, 95th percentile", _percent(told["p95_error"])),
        ("three runs of the same training differ by, median", _percent(told["median_spread"])),
        ("the same, 95th percentile", _percent(told["p95_spread"])),
        ("margin above the peak, mean", _percent(told["mean_margin"])),
        ("runs that complete in an arena of the predicted need", _percent(told["completed"])),
        ("seconds for an estimate, median", f"{told['median_seconds']:.1f}"),
        ("seconds for another batch size, longest", f"{told['largest_further_seconds']:.3f}"),
    ]


def list_zoo(figures: Any) -> list[Row]:
    """A row for each network."""
    rows = []
    for row in figures:
        if "error" not in row:
            continue
        capped = "yes" if row["capped"] == "completes" else "no"
        plan = row.get("plan", "")
        plan = "ran out of memory" if plan.startswith("OutOfMemory") else plan
        planned = f"{plan}, {row['arena_mib']} MiB" if not plan.startswith("refused") else plan
        planned += f"; ran out {row['events']} time(s), rolled back" if row.get("events") else ""
        predicted, measured = f"{row['predicted_mib']} MiB", f"{row['measured_mib']} MiB"
        error, margin = f"{100 * row['error']:+.1f}%", _percent(row["margin"])
        rows.append((row["network"], predicted, measured, error, margin, capped, planned))
    return rows


def list_random_peaks(figures: Any) -> list[Row]:
    """Errors of peaks, where steps are alike and where they are not."""
    steady, noisy = [], []
    for row in figures["rows"]:
        for error, noise, measured in zip(row["error"], row["noise"], row["measured"], strict=True):
            if error is not None and measured >= 8 * 2**20:
                (noisy if noise > 0.1 else steady).append(abs(error))
    capped = [row["capped"] == "completes" for row in figures["rows"] if row.get("capped")]
    rows = [
        ("networks", str(len(figures["rows"]))),
        ("peaks whose steps are within 10% of each other", str(len(steady))),
        ("their error: median, largest", f"{_percent(median(steady))}, {_percent(max(steady))}"),
        ("runs that complete in an arena of the predicted need", f"{sum(capped)} of {len(capped)}"),
    ]
    if noisy:
        errors = f"{len(noisy)}: {_percent(median(noisy))}, {_percent(max(noisy))}"
        rows.insert(3, ("peaks whose steps differ by more: median, largest error", errors))
    return rows


def list_random_plans(figures: Any) -> list[Row]:
    """What became of random networks that were planned into less than stock Keras needs."""
    rows = figures["rows"]
    trained = [row for row in rows if "error" in row]
    errors = [abs(row["error"]) for row in trained]
    exact = [row["differs"] <= (1e-4 if row["network"]["mixed"] else 1e-9) for row in trained]
    return [
        ("networks drawn", str(len(rows))),
        ("with enough activations, trained", str(len(trained))),
        (
            "of these refused, and trained in the memory advised",
            str(sum("advised" in row for row in trained)),
        ),
        ("refused again in the memory advised", str(sum("contradicted" in row for row in rows))),
        ("failed", str(sum("failure" in row for row in rows))),
        ("ran out of memory on the way", str(sum(bool(row["events"]) for row in trained))),
        ("trained to stock Keras's losses and variables", f"{sum(exact)} of {len(exact)}"),
        (
            "error of the planned peak: median, largest",
            f"{_percent(median(errors))}, {_percent(max(errors))}",
        ),
    ]


def list_random_networks(figures: Any) -> list[Row]:
    """How many networks differ from stock Keras."""
    return [(str(figures["networks"]), str(figures["differences"]))]


def list_rematerialised(figures: Any) -> list[Row]:
    """A row for each step."""
    return [
        (
            row["network"],
            row["step"],
            f"{row['activations_mib']} MiB",
            f"{row['divided_by']:.1f}",
            _x(row["time_ratio"]),
        )
        for row in figures
        if row["step"] != "forward only"
    ]


def list_largest_batches(figures: Any) -> list[Row]:
    """A row for each network."""
    rows = []
    for row in figures:
        stock = max(trial["batch"] for trial in row["trials"] if trial["fits"])
        seconds = sum(trial["seconds"] for trial in row["trials"])
        cells = [f"{row[kind]['batch']} ({row[kind]['times_stock']:.1f}x)" for kind in ("exact", "near")]
        faster = f"{seconds / row['exact']['plan_seconds']:.1f}x"
        rows.append((row["model"], row["memory"], str(stock), *cells, faster))
    return rows


def list_micro_batches(figures: Any) -> list[Row]:
    """A row for each micro-batch size, against whole batches."""
    rows, stock = [], {}
    for row in figures:
        if row["micro_batch"] is None:
            stock = row
            continue
        peak, seconds = row["peak"] / stock["peak"], row["seconds"] / stock["seconds"]
        rows.append((row["model"], str(row["batch"]), str(row["micro_batch"]), _x(peak), _x(seconds)))
    return rows


def list_costs(fit: Any, guard: Any) -> list[Row]:
    """What `fit` and the guard cost a job that fits."""
    return [
        (
            f"{label}, {r['model']}",
            _x(r["step_ratio"]),
            _x(r["stock_again"]),
            f"{r['first_step_overhead_s']:+.1f} s",
            _x(r["peak_ratio"]) if "peak_ratio" in r else "",
        )
        for label, measured in (("`memfit.fit`", fit), ("the guard alone", guard))
        for r in measured
        if r["step_ratio"]
    ]


def list_faults(figures: Any) -> list[Row]:
    """A row for each training."""
    return [
        (
            row["training"],
            f"{row['happened']} ({row['faults']})",
            f"{row['batches_seen']} of {row['batches']}",
            f"{row['largest_difference']:.1g}",
        )
        for row in figures
    ]


def list_large_inputs(figures: Any) -> list[Row]:
    """Training and prediction."""
    return [
        (
            row["what"],
            f"{row['stock_peak_mib']:.0f} MiB",
            f"{row['peak_mib']:.0f} MiB ({_x(row['share'])})",
            _x(row["time"]),
            f"{row['largest_difference']:.1g}",
        )
        for row in figures.values()
    ]


def list_optimizers(figures: Any) -> list[Row]:
    """A row for each optimizer."""
    adam = figures["state_bytes"]["Adam"]
    return [
        (name, f"{size / 2**20:.1f} MiB", f"{100 * size / adam:.0f}%")
        for name, size in figures["state_bytes"].items()
    ]


def list_variants(figures: Any) -> list[Row]:
    """A row for each variant."""
    rows = []
    for row in figures:
        if "error" not in row:
            continue
        predicted, measured = f"{row['predicted_mib']:.1f} MiB", f"{row['measured_mib']:.1f} MiB"
        spread = f"{100 * row['spread']:.0f}%" if "spread" in row else "once"
        error = f"{100 * row['error']:+.1f}%"
        rows.append((row["network"], row["variant"], predicted, measured, error, spread))
    return rows


def list_leaks(figures: Any) -> list[Row]:
    """What was found, and what it costs."""
    loops = figures["loops"]
    leaking = [loop for loop in loops if loop["leaks_at"]]
    clean = [loop for loop in loops if not loop["leaks_at"]]
    cost = max(loop["cost"] for loop in loops if loop.get("cost") is not None)
    return [
        ("leaking loops found with the right line", f"{sum(r['right'] for r in leaking)} of {len(leaking)}"),
        ("clean loops without a false alarm", f"{sum(r['right'] for r in clean)} of {len(clean)}"),
        ("cost as a fraction of a loop's time, largest", _percent(cost)),
    ]


def list_trials(figures: Any) -> list[Row]:
    """The parent after one training and after all."""
    rows = []
    for name, key in (("`memfit.trials`", "trials"), ("one process with `clear_session`", "one process")):
        told = figures[key]
        rows.append((name, f"{told['after_1']:.0f} MiB", f"{told['after_all']:.0f} MiB"))
    return rows


def list_data(figures: Any) -> list[Row]:
    """A row for each figure."""
    return [
        (what, _x(value) if "seconds" not in what else f"{value:.2f} s") for what, value in figures.items()
    ]


def list_watching(monitor: Any, records: Any) -> list[Row]:
    """What watching takes."""
    quiet = monitor[0]
    return [
        (
            "`memfit.MemoryMonitor`",
            f"{100 * quiet['own_share_of_time']:.2f}% of a step of {1e3 * quiet['stock_step_s']:.0f} ms",
        ),
        (
            "records of runs",
            f"{100 * records['own_share_of_time']:.2f}% of a step of {1e3 * records['stock_step_s']:.0f} ms",
        ),
    ]


def list_compiled(figures: Any) -> list[Row]:
    """A row for each network and GPU."""
    rows = []
    for row in figures["largest"]:
        at_least = "at least " if "at least" in row["lever"] else ""
        rows.append(
            (
                row["model"],
                row["target"],
                str(row["stock"]),
                f"{at_least}{row['memfit']} ({row['times']:.1f}x)",
            )
        )
    return rows


def list_ranks(figures: Any) -> list[Row]:
    """A row for each case of a training on several ranks."""
    rows = []
    for row in figures["exactness"]:
        ours = [f"{row[name]:.0e}" for name in ("2 ranks", "3 ranks")]
        stock = row["MirroredStrategy"]
        same = "yes" if row["same bits on all ranks"] else "no"
        rows.append((row["case"], *ours, same, stock if isinstance(stock, str) else f"{stock:.0e}"))
    return rows


def list_rank_costs(figures: Any) -> list[Row]:
    """Memory and time of a step on two ranks."""
    memory, step, state = figures["memory, MiB"], figures["step, ms"], figures.get("sharded state")
    found = [
        ("gradients", f"{memory['gradients']:.0f} MiB"),
        ("memory that summing them takes", f"{memory['beside']:.1f} MiB"),
        ("step time, memfit", f"{step['memfit']:.0f} ms"),
        (
            "step time, patched MultiWorkerMirroredStrategy",
            f"{step['patched MultiWorkerMirroredStrategy']:.0f} ms",
        ),
        ("ratio", f"{step['ratio']:.2f}x"),
    ]
    if state is not None:
        found += [
            ("Adam's state on a rank", f"{state['state, MiB']:.1f} MiB"),
            ("with --shard-optimizer", f"{state['dealt out, MiB']:.1f} MiB"),
            ("step time with it", f"{state['dealt out, ms'] / state['step, ms']:.2f}x"),
        ]
    return found


def list_rank_faults(figures: Any) -> list[Row]:
    """A row for each run with faults."""
    rows = []
    for row in figures:
        noticed, once = f"{row['slowest_noticed_s']:.1f} s", "yes" if row["batches_once"] else "no"
        faults = f"{row['happened']} ({row['faults']})"
        rows.append((str(row["ranks"]), faults, once, f"{row['largest_difference']:.1g}", noticed))
    return rows
