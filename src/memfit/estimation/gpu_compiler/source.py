"""Predictions of a GPU's compiler: what a step takes on a GPU, which need not be there."""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from memfit.budgets.gpu_table import CONTEXT, GPU
from memfit.errors import InvalidInput
from memfit.estimation import margins
from memfit.estimation.gpu_compiler.compiled import Parts
from memfit.estimation.gpu_compiler.curve import Curve, Figures
from memfit.estimation.replay.naming import KINDS, Names
from memfit.estimation.source import Course, Tensor, Unknown
from memfit.sizes import Size
from memfit.tables import table


class CompiledSource:
    """A GPU's compiler as the `Source` of an estimate.

    Attributes:
        text: Where the figures come from, as a sentence.
        device: The GPU it compiles for.
        parts: What the arguments of the step are made of.
        curve: The compiled batch sizes.
        compiled: True: a further batch size takes seconds to minutes.
        fixed_batch: None: models that allow only one batch size are not compiled.
        left_by_parts: 0: steps in micro-batches are not compiled.
    """

    compiled = True
    fixed_batch: int | None = None
    left_by_parts = 0.0

    def __init__(self, text: str, device: GPU, parts: Parts, curve: Curve) -> None:
        self.text, self.device, self.parts, self.curve = text, device, parts, curve

    def within(self, whole: int) -> "CompiledSource":
        """Returns itself: steps in micro-batches are not compiled."""
        return self

    def at(self, batch: int) -> "CompiledStep":
        """Predicts a batch size: compiled, or on the line where three compilations agree."""
        return CompiledStep(self, self.curve.at(batch), batch)

    def sketch(self, batch: int) -> "CompiledStep":
        """Predicts a batch size without compiling it, on lines through what was compiled before."""
        return CompiledStep(self, self.curve.sketch(batch, self.parts.sample), batch)

    def max_batch(self, memory: Size, start: int) -> int:
        """Finds the largest batch size that fits, 0 for none; at most three are compiled, `start` first."""
        fixed = self.parts.weights + self.parts.optimizer
        first, needed = start, self.at(start).needed
        per_sample = max((needed - fixed) / first, 1.0)
        second = max(1, int((memory - fixed) / per_sample))
        if second == first:
            second = first + 1 if needed <= memory else max(1, first - 1)
        if second == first:
            return 1 if needed <= memory else 0
        points = {size: self._compiled_need(size) for size in (first, second)}
        third = _on_line(points, first, second, memory)
        if third < 1:
            return 0
        if third in points:
            return third if points[third] <= memory else 0
        points[third] = self._compiled_need(third)
        if points[third] <= memory:
            return third
        below = max((size for size, need in points.items() if need <= memory), default=0)
        return max(below, min(third - 1, _on_line(points, below or min(points), third, memory)))

    def fixed_part(self, batch: int) -> float:
        """The part of the time of a step that does not depend on the batch, by the compiler's kernels."""
        quarter = max(1, batch // 4)
        if quarter == batch:
            return 0.0
        seconds, of_quarter = self.sketch(batch).step_time, self.sketch(quarter).step_time
        each = (seconds - of_quarter) / (batch - quarter)
        return max(0.0, 1 - each * batch / seconds)

    def _compiled_need(self, batch: int) -> int:
        return CompiledStep(self, self.curve.compiled(batch), batch).needed


class CompiledStep:
    """The `Prediction` of a compiled step at one batch size.

    Attributes:
        parts: What the arguments of the step are made of.
        figures: The compiler's figures, or those on the line between compiled batch sizes.
    """

    def __init__(self, source: CompiledSource, figures: Figures, batch: int) -> None:
        self._source, self.figures, self._batch = source, figures, batch
        self.parts = source.parts

    @property
    def peak(self) -> Size:
        """Arguments, results that overwrite none of them, and temporaries."""
        return Size(self.figures.peak)

    @property
    def spread(self) -> tuple[Size, Size]:
        """The peak twice: a compiled step takes the same each time."""
        return self.peak, self.peak

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """What is not in the peak, because it is decided on the device."""
        figures = self.figures
        unsplit = min(int(figures.temporaries), margins.UNSPLIT_CHUNK)
        rounding = int(figures.buffers) * margins.SMALLEST_CHUNK
        return (
            Unknown(
                "cuDNN workspace",
                Size(int(figures.workspace)),
                "guess: each convolution's tensors once more while it runs",
            ),
            Unknown(
                "allocator",
                Size(unsplit + rounding),
                "at most: unsplit chunk and rounding of TensorFlow's BFC",
            ),
            Unknown(
                "XLA's version",
                Size(int(margins.OTHER_XLA_VERSION * figures.temporaries)),
                "guess: 5% of the temporaries; TensorFlow's XLA is another version",
            ),
        )

    @property
    def needed(self) -> Size:
        """The memory to run it in: the peak, and what the compiler does not know."""
        return Size(self.peak + sum(part.bytes for part in self.unknown))

    def needs_at_most(self, memory: Size) -> bool:
        return self.needed <= memory

    def peak_in(self, memory: Size) -> Size:
        """The peak, whatever the memory: the temporaries are one block."""
        return self.peak

    @property
    def step_time(self) -> float:
        """The least seconds of a step (predicted): the roofline of its kernels."""
        return self.figures.seconds

    @cached_property
    def breakdown(self) -> Mapping[str, Size]:
        sums: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        for tensor in self._living:
            sums[tensor.kind] += tensor.bytes
        figures, temporary, known = self.figures, sum(sums.values()), self.parts
        # The compiler lays temporaries over arguments that it needs no longer: their sum may be above the block's.
        scale = min(1.0, figures.temporaries / temporary) if temporary else 0.0
        parts = {kind: int(size * scale) for kind, size in sums.items()}
        inputs = min(int(figures.arguments), known.sample * self._batch)
        weights = min(int(figures.arguments) - inputs, known.weights)
        parts |= {"weights": weights, "inputs": inputs}
        parts["optimizer state"] = int(figures.arguments) - inputs - weights
        parts["rounding"] = self.peak - sum(size for kind, size in parts.items() if kind != "rounding")
        return {kind: Size(max(0, parts[kind])) for kind in KINDS}

    @cached_property
    def _living(self) -> tuple[Tensor, ...]:
        names = Names(self.parts.layers, self.parts.optimizer_name)
        kinds = {"backward": "gradients", "forward": "activations"}
        return tuple(
            Tensor(
                Size(item.bytes),
                kinds.get(names.phase(item.op), "workspace"),
                names.layer(item.op),
                item.op,
                item.shape,
            )
            for item in self.figures.living
        )

    def top(self, count: int) -> tuple[Tensor, ...]:
        """The largest temporaries that are alive at the peak."""
        return self._living[:count]

    def course(self) -> Course:
        """There is none.

        Raises:
            InvalidInput: Always.
        """
        raise InvalidInput(
            "A timeline needs a recording, and the GPU compiler's figures have none",
            received=self._source.text,
            remedy="Leave out the device",
        )

    @property
    def told_by(self) -> str:
        """Whether this very batch was compiled."""
        return "compiled" if self.figures.compiled else "between compiled batches"

    @property
    def remarks(self) -> list[str]:
        return [
            "not known to the compiler",
            table([[part.name, part.bytes, part.source] for part in self.unknown if part.bytes], right=[1]),
            "",
            f"to run it needs {self.needed} ({self.needed / self.peak - 1:+.1%})"
            f" and {Size(CONTEXT)} for the CUDA context (guess)",
            f"a step takes {self.step_time * 1000:.1f} ms or more (predicted: roofline of its kernels)",
        ]

    def facts(self) -> dict[str, Any]:
        """The compiled batch sizes, and what the peak is made of for the compiler."""
        return {
            "compiled_batches": sorted(self._source.curve.known),
            "arguments": int(self.figures.arguments),
            "results": int(self.figures.results),
            "temporaries": int(self.figures.temporaries),
        }


def _on_line(points: Mapping[int, int], first: int, second: int, memory: int) -> int:
    """The largest batch size that fits on the line through two points."""
    slope = (points[second] - points[first]) / (second - first) if second != first else 0.0
    if slope <= 0:
        return max(first, second)
    return int(first + (memory - points[first]) / slope)
