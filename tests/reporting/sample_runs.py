"""Records of runs that never ran, for tests of what is shown: every figure is made up, and none is random."""
# ruff: noqa: E501 (sentences of events)

import math
from typing import Any

from memfit.estimation.source import Tensor
from memfit.estimation.step_timeline import Share, StepTimeline
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import LeverRow, Plan
from memfit.sizes import Size
from memfit.steps.recipe import Recipe
from memfit.training.records.record import FINISHED, Mark, Process, RunRecord, Series

MIB = 2**20
INJECTED = "<script>document.title='injected'</script>"
_KINDS = ("weights", "optimizer state", "inputs", "activations", "gradients", "workspace", "rounding")


def a_timeline(layers: int = 12, scale: float = 1.0, injected: str = "") -> StepTimeline:
    """A step whose activations grow to the peak and shrink behind it."""
    positions = tuple(row / 99 for row in range(100))
    sums = tuple(_row(place, scale) for place in positions)
    top = max(range(100), key=lambda row: sum(sums[row]))
    breakdown = {kind: Size(size) for kind, size in zip(_KINDS, sums[top], strict=True)}
    held, shares = breakdown["activations"], [Share("", "optimizer state", breakdown["optimizer state"])]
    parts = sum(range(1, layers + 1))
    for number in range(layers):
        name = injected if injected and number == 2 else f"block_{number // 3 + 1}_conv_{number % 3 + 1}"
        shares.append(Share(name, "activations", Size(held * (layers - number) // parts)))
        shares.append(Share(name, "weights", Size(breakdown["weights"] // layers)))
        shares.append(Share(name, "gradients", Size(breakdown["gradients"] // layers)))
    largest = tuple(
        Tensor(
            share.bytes,
            share.kind,
            share.layer,
            "Conv2D",
            "float32[64,56,56,64]",
            0.0 if share.kind == "weights" else 0.03 * row,
            1.0 if share.kind == "weights" else 0.95 - 0.03 * row,
        )
        for row, share in enumerate(sorted(shares, key=lambda share: -share.bytes)[:14])
    )
    peak = Size(sum(breakdown.values()))
    shares.sort(key=lambda share: -share.bytes)
    return StepTimeline(peak, breakdown, tuple(shares), _KINDS, positions, sums, top, largest)


def _row(place: float, scale: float) -> tuple[int, ...]:
    activations = int(scale * 210 * MIB * math.sin(math.pi * min(1.0, place * 1.02)) ** 1.2)
    gradients = int(24 * MIB * max(0.0, place - 0.5) * 2)
    workspace = int(9 * MIB * (math.sin(40 * place) > 0.4))
    return (24 * MIB, 48 * MIB, 12 * MIB, activations, gradients, workspace, 3 * MIB + 7919)


def a_plan(injected: str = "", scale: float = 1.0) -> Plan:
    timeline = a_timeline(injected=injected, scale=scale)
    levers = (
        LeverRow("rematerialisation", Fidelity.EXACT, True, "activations are computed again", "keeps 7 tensors", Size(180 * MIB), 0.21),
        LeverRow("micro-batches", Fidelity.NEAR, True, "BatchNormalization sees fewer samples", "4 micro-batches of 16", Size(420 * MIB), 0.03),
        LeverRow("inputs on the host", Fidelity.EXACT, False, "not needed: the levers above are enough, and more faithful or faster"),
        LeverRow("mixed precision", Fidelity.PRECISION, False, 'allow="precision" would be needed: activations in float16', saving=Size(140 * MIB)),
    )  # fmt: skip
    return Plan(
        model="a1b2c3",
        batch_size=64,
        memory=Size(400 * MIB),
        fidelity=Fidelity.NEAR,
        recipe=Recipe(micro_batch=16),
        stock=Size(910 * MIB),
        predicted=timeline.peak,
        margin=Size(20 * MIB),
        time=1.24,
        source="recorded on this machine's CPU",
        levers=levers,
        timeline=timeline,
    )


def a_run(epochs: int = 50, injected: str = "", scale: float = 1.0, **changes: Any) -> RunRecord:
    """A run of some epochs with a validation and a checkpoint in each, two shortages, a death and a restart."""
    length, plan = 12.0 * epochs, a_plan(injected, scale)
    rows = [length * (row + 1) / 400 for row in range(400)]
    device = [int(plan.predicted * (0.97 if (second % 12) < 9 else 0.55)) for second in rows]
    host = [int(MIB * (560 + 70 * (1 - math.exp(-second / 60)))) for second in rows]
    marks = []
    for epoch in range(epochs):
        begin = 12.0 * epoch
        marks.append(Mark(begin, "epoch", epoch=epoch, lasted=11.9))
        marks.append(Mark(begin + 9, "validation", epoch=epoch, lasted=2.5))
        marks.append(Mark(begin + 11.6, "checkpoint", epoch=epoch, batch=90))
    marks += [
        Mark(0.05 * length, "out of memory", "Out of memory in training, batch 12: failed to allocate 16 MiB for layer `block_1_conv_1`, 9.0 MiB free. Now 8 micro-batches.", epochs // 20, 12),
        Mark(0.30 * length, "out of memory", "Out of memory in validation, batch 2: failed to allocate 32 MiB. Validation in slices of 16.", epochs * 3 // 10, 2),
        Mark(0.62 * length, "death", "The process was killed (SIGKILL), most likely by the kernel for lack of memory.", epochs * 62 // 100, 40),
        Mark(0.63 * length, "restart", "Started again with a tighter plan.", epochs * 62 // 100, 40),
    ]  # fmt: skip
    given: dict[str, Any] = {
        "id": "3fa9c1",
        "begun": 1.79e9,
        "updated": 1.79e9 + length,
        "ended": 1.79e9 + length,
        "outcome": FINISHED,
        "process": Process(1, 0.0, "elsewhere"),
        "command": "memfit run",
        "script": "train.py",
        "restarts": 1,
        "versions": {"python": "3.11.7", "memfit": "0.1.0", "keras": "3.15.1", "tensorflow": "2.21.0"},
        "environment": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
        "machine": {"system": "Linux 6.1 x86_64", "processors": 2, "memories": [{"name": "arena", "total": 400 * MIB, "kind": "arena"}]},
        "model": injected or "mobilenetv2",
        "facts": {"optimizer": "Adam", "layers": 154, "parameters": 3_538_984, "epochs": epochs},
        "batch_size": 64,
        "memory": Size(400 * MIB),
        "memory_source": "--memory",
        "host_memory": Size(16 * 2**30),
        "host_parts": {"the process when the training began (measured)": 540 * MIB, "the input pipeline": 96 * MIB},
        "allow": "near",
        "plan": plan,
        "device": "CPU:0",
        "device_peak": Size(max(device)),
        "host_peak": Size(max(host)),
        "first_step_seconds": 4.2,
        "step_seconds": 0.0831,
        "steps": 90 * epochs,
        "series": Series(tuple(rows), tuple(device), tuple(host), tuple(range(400))),
        "marks": tuple(sorted(marks, key=lambda mark: mark.seconds)),
        "findings": [
            {"rule": "shuffle-after-batch", "where": "3 (shuffle)", "what": "Batches are shuffled, not samples.", "stake": "the order of samples", "fix": "shuffle before batch", "dataset": 1, "name": "training data"},
        ],
    }  # fmt: skip
    return RunRecord(**(given | changes))
