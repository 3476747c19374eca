"""What XLA's GPU compiler says about six trainings on three GPUs: stock, memfit's exact steps, the largest batches.

python benchmarks/gpu_compiler/run.py [--only TABLE] [--target GPU] [--again] [NAME ...]

Everything comes from the compiler; nothing runs on a GPU. Rows are written as they come, and a run goes on with the
rows that are not in the result file yet; --again makes those of the named cases anew. What was compiled before
comes from memfit's cache on disk.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu_compiler.cases import CASES, TARGETS, Case
from gpu_compiler.until_buffers import compiled_until_buffers
from machine import RESULTS, write
from memfit.budgets.gpu_table import gpu
from memfit.estimation.estimating import estimate
from memfit.estimation.gpu_compiler.compiled import Compiled, Parts, load_or_compile
from memfit.estimation.gpu_compiler.compiling import compiler_version
from memfit.estimation.gpu_compiler.curve import Curve
from memfit.estimation.gpu_compiler.lowering import lower_step
from memfit.estimation.gpu_compiler.source import CompiledSource, CompiledStep
from memfit.estimation.recording.sending import packed
from memfit.estimation.recording.specs import spec_of
from memfit.estimation.recording.step import Step
from memfit.tables import table

MIB = 2**20
# The GPU that recordings are compared with: the compiler's figures for the three differ by less than 3%.
RECORDED = "A100 40GB"
# How far the compiler's figure may be above what was asked for.
_NEAR = 0.05
# The largest batch is looked for from here: what memfit is to reach.
_TIMES = 3
# How many batch sizes are compiled at most, how full is full, and how near to each other two are near enough.
_COMPILED, _FULL, _CLOSE = 5, 0.98, 0.04
_BOTH = ("stock", "memfit")
# How far above a line from a small batch XLA's own recomputation gets.
_BEYOND = 1.25
# What is changed in a step: nothing, segments that keep a part of the activations, or micro-batches.
Lever = float | int | None


def rematerialised(model: Any, segments: Any) -> Step:
    """Builds a copied model's step with these segments."""
    from memfit.steps.recipe import Recipe
    from memfit.steps.train_step import build

    return build(model, Recipe(segments=segments))


def micro_batched(model: Any, size: int) -> Step:
    """Builds a copied model's step in micro-batches."""
    from memfit.steps.recipe import Recipe
    from memfit.steps.train_step import build

    return build(model, Recipe(size))


class Training:
    """A case at any batch, stock or with a lever, for any target; each step is lowered once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = case.model()
        self.spec = spec_of(self.model)
        self.lowered: dict[tuple[Lever, int], tuple[bytes, Parts]] = {}
        self.version = compiler_version()

    @cache  # noqa: B019 - a training lives as long as the benchmark
    def build(self, lever: Lever) -> Any:
        """What builds a copied model's step with a lever."""
        from memfit.steps.rematerialisation import find_choices

        if lever is None:
            return None
        if isinstance(lever, int):
            return partial(micro_batched, size=lever)
        choices = find_choices(self.model, self.case.batch, compiled=True)
        fitting = [choice for choice in choices if choice.activation_bytes <= lever * choice.stock_bytes]
        segments = fitting[0] if fitting else choices[-1]  # where none is that small, the smallest there is
        return partial(rematerialised, segments=replace(segments, split_convolutions=lever == 0))

    def lower(self, lever: Lever, batch: int) -> tuple[bytes, Parts]:
        """The step as HLO, and what its arguments are made of."""
        if (lever, batch) not in self.lowered:
            payload = packed(self.model, self.spec)
            self.lowered[lever, batch] = lower_step(payload, self.build(lever), batch, "train")
        return self.lowered[lever, batch]

    def estimate(self, lever: Lever, batch: int, target: str) -> CompiledStep:
        """The estimate that `memfit.estimate(device=...)` gives, with each step lowered once for all targets."""
        card = gpu(target)
        specs = card.specs
        assert specs is not None

        def compile_at(size: int) -> Compiled:
            hlo, _ = self.lower(lever, size)
            return load_or_compile(
                hlo, specs.target, self.version, lambda: compiled_until_buffers(hlo, specs.target)
            )

        _, parts = self.lower(lever, batch)
        return CompiledSource(self.version, card, parts, Curve(compile_at, specs)).at(batch)


def step_row(training: Training, target: str, step: str) -> dict[str, Any]:
    """Stock or an exact step at the user's batch."""
    case = training.case
    part = {"1/2": 2, "1/4": 4}.get(step)
    lever: Lever = None if part is None else case.batch // part if case.micro_batches else 1 / part
    begin = time.perf_counter()
    est = training.estimate(lever, case.batch, target)
    if isinstance(lever, float):
        # Segments are chosen on predictions. Where the compiler finds more, less is asked for, once.
        stock = training.estimate(None, case.batch, target).figures.temporaries
        more = est.figures.temporaries / (lever * stock)
        if more > 1 + _NEAR:
            smaller = training.estimate(lever / more, case.batch, target)
            if smaller.figures.temporaries < est.figures.temporaries:
                est, lever = smaller, lever / more
    figures = est.figures
    return {
        "model": case.name,
        "target": target,
        "batch": case.batch,
        "step": step,
        "lever": "" if lever is None else "micro-batches" if case.micro_batches else "segments",
        "asked": lever if isinstance(lever, float) else None,
        "arguments": int(figures.arguments),
        "temporaries": int(figures.temporaries),
        "needed": int(est.needed),
        "roofline_ms": 1000 * est.step_time,
        "wall_seconds": time.perf_counter() - begin,
    }


def largest_row(training: Training, target: str) -> dict[str, Any]:
    """The largest batch that fits a GPU, stock and with an exact lever: each is compiled."""
    case, memory = training.case, gpu(target).usable
    begin = time.perf_counter()
    # What another GPU holds tells where to begin: its figures and this one's are nearly the same per sample.
    others = [row for row in kept()["largest"] if row["model"] == case.name and row["target"] != target]
    known = {name: int(row[name] * memory / gpu(row["target"]).usable) for row in others for name in _BOTH}
    first, beyond = known.get("stock", case.batch), 1.0 if known else _BEYOND
    found = largest(lambda batch: training.estimate(None, batch, target), memory, first, beyond)
    stock = found["fits"]
    row = {"model": case.name, "target": target, "stock": stock, "stock_search": found}
    if case.micro_batches:
        # Any batch fits in micro-batches but for its own bytes, so one is checked, not the largest looked for.
        parts = training.estimate(stock // 2, 4 * stock, target)
        row |= {"memfit": 4 * stock if parts.needs_at_most(memory) else 0, "lever": "micro-batches, at least"}
    else:
        first = known.get("memfit") or _TIMES * stock
        found = largest(lambda batch: training.estimate(0.0, batch, target), memory, first)
        row |= {"memfit": found["fits"], "memfit_search": found, "lever": "segments"}
    seconds = time.perf_counter() - begin
    return {**row, "times": row["memfit"] / max(stock, 1), "wall_seconds": seconds}


def largest(
    estimate_at: Callable[[int], CompiledStep], memory: int, batch: int, beyond: float = 1.0
) -> dict[str, Any]:
    """The largest batch found to fit, the smallest above it found not to, and the part of the memory each needs.

    Five batch sizes are compiled at most, until less than 4% are between the two.

    Args:
        estimate_at: Gives the estimate at a batch size.
        memory: What there is.
        batch: The first to compile.
        beyond: How far above the line from the first batch the second is. Near the memory XLA recomputes by itself,
            so that twice the batch need not take twice the memory.
    """
    needs: dict[int, float] = {}
    without: dict[str, float] = {}
    for _ in range(_COMPILED):
        est = estimate_at(batch)
        needs[batch] = est.needed / memory
        without[str(batch)] = round((est.needed - est.figures.workspace) / memory, 3)
        print(f"  batch {batch}: needs {needs[batch]:.3f} of the memory", flush=True)
        fits, fails = _between(needs)
        if needs.get(fits, 0.0) > _FULL or (fails is not None and fails <= (1 + _CLOSE) * fits):
            break
        fixed = est.parts.weights + est.parts.optimizer
        line = int(batch * (0.995 * memory - fixed) / (est.needed - fixed))
        if len(needs) == 1:
            batch = int(beyond * line)
        elif fails is None:
            batch = max(line, int(1.1 * fits))  # it grows more slowly than the line says
        else:
            batch = line if fits < line < fails else (fits + fails) // 2
    fits, fails = _between(needs)
    return {
        "fits": fits,
        "fills": round(needs.get(fits, 0.0), 3),
        "does_not": fails,
        "compiled": {str(size): round(need, 3) for size, need in sorted(needs.items())},
        "without_workspace": without,
    }


def _between(needs: dict[int, float]) -> tuple[int, int | None]:
    """The largest batch that fits, and the smallest above it that does not."""
    fits = max((size for size, need in needs.items() if need <= 1), default=0)
    return fits, min((size for size, need in needs.items() if need > 1 and size > fits), default=None)


def recorded_row(training: Training) -> dict[str, Any]:
    """The peak predicted from a recording on this CPU, against the compiler's for one GPU."""
    case = training.case
    recorded = int(estimate(training.model, case.batch).peak)
    peak = int(training.estimate(None, case.batch, RECORDED).peak)
    return {
        "model": case.name,
        "target": RECORDED,
        "recorded": recorded,
        "compiled": peak,
        "error": recorded / peak - 1,
    }


def _row(row: dict[str, Any]) -> list[str]:
    return [
        row["model"],
        row["target"],
        str(row["batch"]),
        row["step"],
        row["lever"],
        f"{row['arguments'] / MIB:.0f}",
        f"{row['temporaries'] / MIB:.0f}",
        f"{row['needed'] / MIB:.0f}",
        f"{row['roofline_ms']:.1f}",
    ]


def kept() -> dict[str, Any]:
    """What an earlier run has written."""
    file = RESULTS / "gpu_compiler.json"
    empty: dict[str, Any] = {"steps": [], "largest": [], "recorded": []}
    return {**empty, **json.loads(file.read_text())["figures"]} if file.is_file() else empty


def place(row: dict[str, Any]) -> tuple[str, ...]:
    """Which row of its table it is."""
    return row["model"], row["target"], row.get("step", "")


def merge(kind: str, row: dict[str, Any]) -> None:
    """Puts a row in the place of an earlier one, and writes all."""
    print({name: value for name, value in row.items() if value != ""}, flush=True)
    figures = kept()
    others = [other for other in figures[kind] if place(other) != place(row)]
    figures[kind] = [*others, row]
    figures["compiler"] = compiler_version()
    write("gpu_compiler", figures)


def main() -> None:
    """Runs the cases, prints the tables and writes benchmarks/results/gpu_compiler.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--only", choices=["steps", "largest", "recorded"], help="only this table")
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this GPU")
    parser.add_argument("--again", action="store_true", help="rows that are there already, too")
    args = parser.parse_args()
    for case in CASES:
        if args.names and not any(name in case.name for name in args.names):
            continue
        training = Training(case)
        for target in args.target or TARGETS:
            for step in ("stock", "1/2", "1/4"):
                run("steps", (case.name, target, step), args, partial(step_row, training, target, step))
        run("recorded", (case.name, RECORDED, ""), args, partial(recorded_row, training))
        for target in args.target or TARGETS:
            run("largest", (case.name, target, ""), args, partial(largest_row, training, target))
    show(kept())


def run(
    kind: str, where: tuple[str, ...], args: argparse.Namespace, make: Callable[[], dict[str, Any]]
) -> None:
    """Makes a row where it is wanted and not there yet."""
    if args.only not in (None, kind):
        return
    if args.again or where not in map(place, kept()[kind]):
        merge(kind, make())


def show(figures: dict[str, Any]) -> None:
    """Prints the tables."""
    head = [
        "model",
        "GPU",
        "batch",
        "step",
        "lever",
        "arguments MiB",
        "temporaries MiB",
        "needs MiB",
        "least ms",
    ]
    print(table([_row(row) for row in figures["steps"]], head=head, right=[2, 5, 6, 7, 8]))
    print()
    rows = [
        [row["model"], row["target"], row["stock"], row["memfit"], f"{row['times']:.1f}x", row["lever"]]
        for row in figures["largest"]
    ]
    print(table(rows, head=["model", "GPU", "stock", "memfit exact", "times", "lever"], right=[2, 3, 4]))
    print()
    rows = [
        [row["model"], f"{row['recorded'] / MIB:.0f}", f"{row['compiled'] / MIB:.0f}", f"{row['error']:+.0%}"]
        for row in figures["recorded"]
    ]
    print(table(rows, head=["model", "recorded MiB", f"compiled for {RECORDED}", "error"], right=range(1, 4)))


if __name__ == "__main__":
    main()
