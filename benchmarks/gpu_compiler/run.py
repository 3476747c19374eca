"""What XLA's GPU compiler says about six trainings on three GPUs: stock, memfit's exact steps, the largest batches.

python benchmarks/gpu_compiler/run.py [--steps | --largest] [--target GPU] [NAME ...]

Everything comes from the compiler; nothing runs on a GPU. Rows are written as they come, and what was compiled
before comes from memfit's cache on disk, so that a run that was ended can be started again.
"""

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu_compiler.cases import CASES, TARGETS, Case
from machine import RESULTS, write
from memfit.estimation.gpu_compiler.cache import remembered
from memfit.estimation.gpu_compiler.compiled import Compiled
from memfit.estimation.gpu_compiler.compiling import compiled
from memfit.estimation.gpu_compiler.curve import Curve
from memfit.estimation.gpu_compiler.estimate import CompiledEstimate, Parts
from memfit.estimation.gpu_compiler.installed import compiler_version
from memfit.estimation.gpu_compiler.lowering import Lowered, lowered
from memfit.estimation.gpus import gpu
from memfit.estimation.sending import packed
from memfit.estimation.specs import spec_of
from memfit.tables import table

MIB = 2**20
PARTS = {"1/2": 0.5, "1/4": 0.25}
# The levers of the largest batch: the deepest that are exact and still train at a sensible speed.
DEEPEST = 0.15


def rematerialised(model: Any, segments: Any) -> None:
    """Gives a copied model the step with these segments."""
    from memfit.training.planning_ahead import rematerialise

    rematerialise(model, segments)


def micro_batched(model: Any, size: int) -> None:
    """Gives a copied model the step in micro-batches."""
    from memfit.training import private_apis
    from memfit.training.micro_batches import micro_batched_train_step

    def forward(x: Any) -> Any:
        return private_apis.forward(model, x, training=True)

    object.__setattr__(model, "train_step", micro_batched_train_step(model, size, forward))


class Training:
    """A case at any batch, stock or with a lever, for any target; each step is lowered once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = case.model()
        self.spec = spec_of(self.model)
        self.lowered: dict[Any, Lowered] = {}
        self.version = compiler_version()

    def prepare(self, part: float | None) -> Any:
        """The lever that is to leave a part of the activations; None for stock."""
        if part is None:
            return None
        if self.case.micro_batches:
            return partial(micro_batched, size=max(1, int(self.case.batch * part)))
        from memfit.planning.rematerialisation import choose

        return partial(rematerialised, segments=choose(self.model, self.case.batch, part))

    def hlo(self, part: float | None, batch: int) -> Lowered:
        """The step as HLO."""
        if (part, batch) not in self.lowered:
            payload = packed(self.model, self.spec, self.prepare(part))
            self.lowered[part, batch] = lowered(payload, batch, "train")
        return self.lowered[part, batch]

    def compiled(self, part: float | None, batch: int, target: str) -> Compiled:
        """The compiler's figures."""
        hlo, specs = self.hlo(part, batch).hlo, gpu(target).specs
        assert specs is not None
        return remembered(hlo, specs.target, self.version, lambda: compiled(hlo, specs.target))

    def estimate(self, part: float | None, target: str) -> CompiledEstimate:
        """The estimate that `memfit.estimate(device=...)` gives, from the steps lowered here."""
        specs = gpu(target).specs
        assert specs is not None
        curve = Curve(lambda batch: self.compiled(part, batch, target), specs)
        curve.compiled(self.case.batch)
        facts = self.hlo(part, self.case.batch)
        parts = Parts(facts.weights, facts.optimizer, facts.batch_bytes, facts.layers, "adam")
        return CompiledEstimate(self.case.batch, "train", self.version, gpu(target), parts, curve)


def step_rows(training: Training, target: str) -> list[dict[str, Any]]:
    """Stock and the two exact steps at the user's batch."""
    case, rows = training.case, []
    for name, part in {"stock": None, **PARTS}.items():
        begin = time.perf_counter()
        est = training.estimate(part, target)
        figures = est.figures
        rows.append(
            {
                "model": case.name,
                "target": target,
                "batch": case.batch,
                "step": name,
                "lever": "" if part is None else "micro-batches" if case.micro_batches else "segments",
                "arguments": int(figures.arguments),
                "temporaries": int(figures.temporaries),
                "needed": int(est.needed),
                "roofline_ms": 1000 * est.seconds,
                "wall_seconds": time.perf_counter() - begin,
            }
        )
        print(_row(rows[-1]), flush=True)
    return rows


def largest_row(training: Training, target: str) -> dict[str, Any]:
    """The largest batch that fits a GPU, stock and with the deepest exact lever."""
    case, memory = training.case, gpu(target).usable
    stock = training.estimate(None, target)
    largest = stock.max_batch(memory)
    row = {"model": case.name, "target": target, "stock": largest, "compiled": sorted(stock.curve.known)}
    if case.micro_batches:
        # Micro-batches of half of stock's largest batch; the batch itself is bound by its own bytes only.
        training.lowered.clear()
        training.prepare = lambda _: partial(micro_batched, size=max(1, largest // 2))  # type: ignore[method-assign]
        need = CompiledEstimate(
            4 * largest,
            "train",
            training.version,
            gpu(target),
            stock.parts,
            Curve(lambda batch: training.compiled(DEEPEST, batch, target), stock.device.specs),  # type: ignore[arg-type]
        ).needed
        row |= {"memfit": 4 * largest if need <= memory else 0, "memfit_at_least": True}
    else:
        deep = training.estimate(DEEPEST, target)
        row |= {"memfit": deep.max_batch(memory), "compiled_memfit": sorted(deep.curve.known)}
    row["times"] = row["memfit"] / max(largest, 1)
    print(row, flush=True)
    return row


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
    empty: dict[str, Any] = {"steps": [], "largest": []}
    return {**empty, **json.loads(file.read_text())["figures"]} if file.is_file() else empty


def merge(kind: str, rows: list[dict[str, Any]]) -> None:
    """Puts rows in the place of earlier ones of the same model and target, and writes all."""
    figures = kept()
    places = {(row["model"], row["target"]) for row in rows}
    others = [row for row in figures[kind] if (row["model"], row["target"]) not in places]
    figures[kind] = others + rows
    figures["compiler"] = compiler_version()
    write("gpu_compiler", figures)


def main() -> None:
    """Runs the cases, prints the tables and writes benchmarks/results/gpu_compiler.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--largest", action="store_true", help="only look for the largest batches")
    parser.add_argument("--steps", action="store_true", help="only compile the steps at the user's batch")
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this GPU")
    args = parser.parse_args()
    chosen = [case for case in CASES if not args.names or any(name in case.name for name in args.names)]
    for case in chosen:
        training = Training(case)
        for target in args.target or TARGETS:
            if not args.largest:
                merge("steps", step_rows(training, target))
        for target in args.target or TARGETS:
            if not args.steps:
                merge("largest", [largest_row(Training(case), target)])
    figures = kept()
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
    print(table([_row(row) for row in figures["steps"]], head=head, right=range(5, 9)))
    print()
    largest = [
        [row["model"], row["target"], row["stock"], row["memfit"], f"{row['times']:.1f}x"]
        for row in figures["largest"]
    ]
    print(table(largest, head=["model", "GPU", "stock", "memfit exact", "times"], right=range(2, 5)))


if __name__ == "__main__":
    main()
