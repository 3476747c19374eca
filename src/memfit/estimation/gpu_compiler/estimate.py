"""The estimate that the GPU compiler gives: what a step takes on a GPU, which need not be there."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from memfit.budgets.gpu_table import CONTEXT, GPU
from memfit.errors import InvalidInput
from memfit.estimation.estimate import Tensor
from memfit.estimation.gpu_compiler.curve import Curve, Figures
from memfit.estimation.replay.naming import KINDS, Names
from memfit.sizes import Size
from memfit.tables import table

_MIB = 2**20
# TensorFlow's BFC allocator gives a request a whole free chunk if that is less than this larger, and rounds every
# request up to 256 bytes (bfc_allocator.cc: kMaxInternalFragmentation, kMinAllocationSize).
_UNSPLIT, _ROUNDED = 128 * _MIB, 256
# jaxlib's XLA is not the very version inside TensorFlow; how much their figures differ on a GPU was not measured.
_OTHER_VERSION = 0.05


@dataclass(frozen=True)
class Unknown:
    """Memory that the compiler does not know of: what for, how much, and where the figure comes from."""

    name: str
    bytes: Size
    source: str


@dataclass(frozen=True)
class Parts:
    """What the arguments of a step are made of, in bytes, and the names its ops go by."""

    weights: int
    optimizer: int
    sample: int
    layers: tuple[str, ...]
    optimizer_name: str


@dataclass(frozen=True, repr=False)
class CompiledEstimate:
    """The peak of one phase at one batch size on a GPU, from the buffers its compiler assigned.

    Attributes:
        batch_size: Samples in a step.
        phase: "train", "validate" or "predict".
        source: Where the figures come from, as a sentence.
        device: The GPU it was compiled for.
        parts: What the arguments are made of.
        curve: The compiled batch sizes.
        others: Gives the estimate of another phase.
        sketched: Whether the figures may be drawn from few compilations without a check.
    """

    batch_size: int
    phase: str
    source: str
    device: GPU
    parts: Parts = field(compare=False)
    curve: Curve = field(compare=False)
    others: Callable[[str], "CompiledEstimate"] | None = field(default=None, compare=False)
    sketched: bool = False

    @cached_property
    def figures(self) -> Figures:
        """The compiler's figures at this batch size, or those on the line between compiled ones."""
        if self.sketched:
            return self.curve.sketch(self.batch_size, self.parts.sample)
        return self.curve.at(self.batch_size)

    @property
    def peak(self) -> Size:
        """Arguments, results that overwrite none of them, and temporaries."""
        return Size(self.figures.peak)

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """What is not in the peak, because it is decided on the device."""
        figures = self.figures
        unsplit = min(int(figures.temporaries), _UNSPLIT) + int(figures.buffers) * _ROUNDED
        return (
            Unknown(
                "cuDNN workspace",
                Size(int(figures.workspace)),
                "guess: each convolution's tensors once more while it runs",
            ),
            Unknown("allocator", Size(unsplit), "at most: unsplit chunk and rounding of TensorFlow's BFC"),
            Unknown(
                "XLA's version",
                Size(int(_OTHER_VERSION * figures.temporaries)),
                "guess: 5% of the temporaries; TensorFlow's XLA is another version",
            ),
        )

    @property
    def needed(self) -> Size:
        """The memory to run it in: the peak, and what the compiler does not know."""
        return Size(self.peak + sum(part.bytes for part in self.unknown))

    @property
    def margin(self) -> float:
        """How much more than the peak is needed, as a part of the peak."""
        return self.needed / self.peak - 1

    @property
    def seconds(self) -> float:
        """The least time of a step (predicted): the roofline of its kernels."""
        return self.figures.seconds

    @cached_property
    def breakdown(self) -> Mapping[str, Size]:
        """Bytes by kind at the peak; they add up to it."""
        sums: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        for tensor in self._living:
            sums[tensor.kind] += tensor.bytes
        figures, temporary = self.figures, sum(sums.values())
        # The compiler lays temporaries over arguments that it needs no longer: their sum may be above the block's.
        scale = min(1.0, figures.temporaries / temporary) if temporary else 0.0
        parts = {kind: int(size * scale) for kind, size in sums.items()}
        inputs = min(int(figures.arguments), self.parts.sample * self.batch_size)
        weights = min(int(figures.arguments) - inputs, self.parts.weights)
        parts |= {"weights": weights, "inputs": inputs}
        parts["optimizer state"] = int(figures.arguments) - inputs - weights
        parts["rounding"] = self.peak - sum(size for kind, size in parts.items() if kind != "rounding")
        return {kind: Size(max(0, parts[kind])) for kind in KINDS}

    @cached_property
    def _living(self) -> tuple[Tensor, ...]:
        names = Names(self.parts.layers, self.parts.optimizer_name)
        found = []
        for item in self.figures.living:
            phase = names.phase(item.op)
            kind = {"backward": "gradients", "forward": "activations"}.get(phase, "workspace")
            found.append(Tensor(Size(item.bytes), kind, names.layer(item.op), item.op, item.shape))
        return tuple(found)

    def top(self, count: int = 10) -> tuple[Tensor, ...]:
        """Returns the largest temporaries that are alive at the peak."""
        return self._living[:count]

    def at(self, batch_size: int) -> "CompiledEstimate":
        """Returns the estimate at another batch size: compiled, or on the line where three compilations agree."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InvalidInput(
                "A batch has at least one sample", received=batch_size, remedy="Give a whole number"
            )
        return replace(self, batch_size=batch_size, sketched=False)

    def sketch(self, batch_size: int) -> "CompiledEstimate":
        """Returns the estimate at another batch size without compiling it, to rank many of them."""
        return replace(self, batch_size=batch_size, sketched=True)

    def fits(self, memory: int | str) -> bool:
        """Whether the phase fits into `memory` with what the compiler does not know."""
        return self.needed <= Size(memory)

    def max_batch(self, memory: int | str) -> int:
        """Returns the largest batch that fits into `memory`, 0 if none does, from at most three compilations."""
        memory = Size(memory)
        fixed = self.parts.weights + self.parts.optimizer
        first = self.batch_size
        per_sample = max((self.needed - fixed) / first, 1.0)
        second = max(1, int((memory - fixed) / per_sample))
        if second == first:
            second = first + 1 if self.fits(memory) else max(1, first - 1)
        if second == first:
            return 1 if self.fits(memory) else 0
        points = {size: self.at(size)._compiled_need() for size in (first, second)}
        third = _on_line(points, first, second, memory)
        if third < 1:
            return 0
        if third in points:
            return third if points[third] <= memory else 0
        points[third] = self.at(third)._compiled_need()
        if points[third] <= memory:
            return third
        below = max((size for size, need in points.items() if need <= memory), default=0)
        return max(below, min(third - 1, _on_line(points, below or min(points), third, memory)))

    def _compiled_need(self) -> int:
        self.curve.compiled(self.batch_size)
        return self.needed

    @property
    def validate(self) -> "CompiledEstimate":
        """The estimate of a validation step at the same batch size."""
        return self._other("validate")

    @property
    def predict(self) -> "CompiledEstimate":
        """The estimate of a prediction step at the same batch size."""
        return self._other("predict")

    def _other(self, phase: str) -> "CompiledEstimate":
        if self.others is None:
            raise InvalidInput(
                "Only the estimate of the training leads to the other phases", received=self.phase
            )
        return replace(self.others(phase), batch_size=self.batch_size)

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as plain data."""
        figures = self.figures
        return {
            "phase": self.phase,
            "batch_size": self.batch_size,
            "source": self.source,
            "device": self.device.name,
            "compiled_batches": sorted(self.curve.known),
            "peak": int(self.peak),
            "arguments": int(figures.arguments),
            "results": int(figures.results),
            "temporaries": int(figures.temporaries),
            "needed": int(self.needed),
            "margin": round(self.margin, 4),
            "unknown": {
                part.name: {"bytes": int(part.bytes), "source": part.source} for part in self.unknown
            },
            "seconds": self.seconds,
            "breakdown": {kind: int(size) for kind, size in self.breakdown.items()},
            "top": [
                {"bytes": int(t.bytes), "kind": t.kind, "layer": t.layer, "op": t.op, "shape": t.shape}
                for t in self.top()
            ],
        }

    def __repr__(self) -> str:
        known = "compiled" if self.figures.compiled else "between compiled batches"
        rows = [[kind, size, f"{size / self.peak:.0%}"] for kind, size in self.breakdown.items() if size]
        unknown = [[part.name, part.bytes, part.source] for part in self.unknown if part.bytes]
        largest = [[t.bytes, t.kind, t.layer or t.op or t.shape] for t in self.top(5)]
        return "\n".join(
            [
                f"Estimate: {self.phase}, batch {self.batch_size}, {self.device.name}: peak {self.peak} ({known})",
                "",
                table([*rows, ["together", self.peak, "100%"]], right=[1, 2]),
                "",
                "not known to the compiler",
                table(unknown, right=[1]),
                "",
                f"to run it needs {self.needed} ({self.margin:+.1%})"
                f" and {Size(CONTEXT)} for the CUDA context (guess)",
                f"a step takes {self.seconds * 1000:.1f} ms or more (predicted: roofline of its kernels)",
                f"source: {self.source}",
                "",
                "largest temporaries at the peak",
                table(largest, right=[0]),
            ]
        )


def _on_line(points: Mapping[int, int], first: int, second: int, memory: int) -> int:
    """The largest batch size that fits on the line through two points."""
    slope = (points[second] - points[first]) / (second - first) if second != first else 0.0
    if slope <= 0:
        return max(first, second)
    return int(first + (memory - points[first]) / slope)
