"""The figures of a step at any batch size from few compilations: lines between them, where lines hold."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from memfit.budgets.device_specs import Specs
from memfit.estimation.gpu_compiler.compiled import Compiled, Living, least_seconds

# How far a compiled batch may lie off the line through its neighbours before lines are no longer trusted.
_STRAIGHT = 0.02
_ENOUGH = 3
_LINEAR = ("arguments", "results", "temporaries", "workspace", "buffers", "seconds")


@dataclass(frozen=True)
class Figures:
    """A step at one batch size, in bytes and seconds; `compiled` says whether this very batch was compiled."""

    arguments: float
    results: float
    temporaries: float
    workspace: float
    buffers: float
    seconds: float
    compiled: bool
    living: tuple[Living, ...] = ()

    @property
    def peak(self) -> int:
        """All that a step takes."""
        return int(self.arguments + self.results + self.temporaries)


class Curve:
    """The compiled batch sizes of one step, each compiled when it is first needed."""

    def __init__(self, compile_at: Callable[[int], Compiled], specs: Specs) -> None:
        self._compile = compile_at
        self._specs = specs
        self.known: dict[int, Figures] = {}

    def compiled(self, batch: int) -> Figures:
        """Returns the figures of a batch size as compiled."""
        if batch not in self.known:
            compiled = self._compile(batch)
            self.known[batch] = Figures(
                arguments=compiled.arguments,
                results=compiled.outputs - compiled.alias,
                temporaries=compiled.temporaries,
                workspace=compiled.workspace,
                buffers=compiled.buffers,
                seconds=least_seconds(compiled.kernels, self._specs),
                compiled=True,
                living=compiled.living,
            )
        return self.known[batch]

    def at(self, batch: int) -> Figures:
        """Returns the figures of a batch size: on a line where three compiled ones agree, else compiled."""
        between = len(self.known) >= _ENOUGH and min(self.known) < batch < max(self.known)
        if between and batch not in self.known and self._bend() <= _STRAIGHT:
            return self._line(batch)
        return self.compiled(batch)

    def sketch(self, batch: int, sample: int) -> Figures:
        """Returns the figures of a batch size without compiling it, on lines through what is compiled already.

        A sample has `sample` bytes, by which the arguments grow.
        """
        if batch in self.known:
            return self.known[batch]
        if len(self.known) > 1:
            return self._line(batch)
        ((size, only),) = self.known.items()
        return replace(
            only,
            arguments=only.arguments + sample * (batch - size),
            temporaries=only.temporaries * batch / size,
            workspace=only.workspace * batch / size,
            seconds=only.seconds * batch / size,
            compiled=False,
            living=_scaled(only.living, batch / size),
        )

    def _line(self, batch: int) -> Figures:
        """The figures on the line through the two compiled batch sizes that are nearest."""
        sizes = sorted(self.known)
        low, high = next((pair for pair in pairwise(sizes) if batch <= pair[1]), (sizes[-2], sizes[-1]))
        part = (batch - low) / (high - low)
        first, second = self.known[low], self.known[high]
        ends = {name: (float(getattr(first, name)), float(getattr(second, name))) for name in _LINEAR}
        values = {name: max(0.0, begin + part * (end - begin)) for name, (begin, end) in ends.items()}
        living = _scaled(second.living, values["temporaries"] / max(second.temporaries, 1))
        return Figures(**values, compiled=False, living=living)

    def _bend(self) -> float:
        """The largest distance of a compiled batch size from the line through its neighbours, as a part of it."""
        sizes = sorted(self.known)
        worst = 0.0
        for low, middle, high in zip(sizes, sizes[1:], sizes[2:], strict=False):
            part = (middle - low) / (high - low)
            on_line = self.known[low].peak + part * (self.known[high].peak - self.known[low].peak)
            worst = max(worst, abs(on_line / self.known[middle].peak - 1))
        return worst


def _scaled(living: tuple[Living, ...], factor: float) -> tuple[Living, ...]:
    return tuple(Living(int(item.bytes * factor), item.op, "") for item in living)
