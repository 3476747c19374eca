"""Measuring a training loop of a script's own: its first updates, in an arena in a process of their own."""

import contextlib
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memfit.budgets.arena import arena_environment
from memfit.budgets.isolation import run_isolated
from memfit.budgets.memory import host_memory
from memfit.errors import InvalidInput, in_one_line
from memfit.sizes import Size, to_plain
from memfit.survival.custom_loops import intercept_updates
from memfit.survival.scripts import after_import, run_script
from memfit.tables import table

# The first updates trace functions and make the optimizer's state.
_WARM = 2
# A GAN updates its critic up to five times before its generator.
_MEASURED = 8
_SECONDS = 20.0  # CPU time after which fewer are enough
_BEFORE = "allocated before the update"
_EAGER = "tensors of ops that run eagerly"


@dataclass(frozen=True)
class LoopTensor:
    """A tensor that is alive at the peak: its bytes, what it is for, the layer or op that asked, its shape."""

    bytes: Size
    kind: str
    asked_by: str
    shape: str


@dataclass(frozen=True)
class MeasuredLoop:
    """What a loop takes, measured.

    Attributes:
        script: The script.
        place: Where its first update is, such as "line 31".
        updates: How many updates were measured, after the first ones.
        peak: The most that was in use.
        parts: Bytes by kind at the peak; they add up to it.
        top: The largest tensors that were made since the last update and are alive there.
    """

    script: str
    place: str
    updates: int
    peak: Size
    parts: dict[str, Size]
    top: tuple[LoopTensor, ...]

    def advise(self) -> str:
        """Says what would help most."""
        if 2 * self.parts[_BEFORE] > self.peak:
            return (
                "Most of it stays from update to update (weights, optimizer state, data): a smaller batch does not "
                "help."
            )
        more = "Eager ops carry no layer names: put @tf.function around the step to see layers."
        return (
            "Most of it grows with the batch: @memfit.gradients(variables, memory=...) on the loss function gives "
            "gradient accumulation and activation checkpointing, as in fit (docs/custom-loops.md)."
        ) + (f" {more}" if _EAGER in self.parts else "")

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as plain data."""
        return to_plain(self) | {"advice": self.advise()}

    def __repr__(self) -> str:
        rows = [[kind, size, f"{size / self.peak:.0%}"] for kind, size in self.parts.items() if size]
        rows.append(["total", self.peak, "100%"])
        largest = [[tensor.bytes, tensor.kind, tensor.asked_by or tensor.shape] for tensor in self.top[:5]]
        lines = [
            f"{self.script}, {self.place}: trains in a custom loop: peak {self.peak} "
            f"(measured, {self.updates} updates)",
            "",
            table(rows, right=[1, 2]),
        ]
        if largest:
            lines += ["", "largest tensors at the peak", table(largest, right=[0])]
        return "\n".join([*lines, "", self.advise()])


class _Measured(BaseException):
    """Leaves the script when enough updates were measured; no `except Exception` of the script stops it."""


def measure_loop(script: Path, arguments: Sequence[str] = (), *, quiet: bool = False) -> MeasuredLoop:
    """Runs a script up to its first ten optimizer updates and measures what they take.

    It runs from its beginning, in an arena in a process of its own: all its memory is counted, and nothing of it
    stays. What it writes to files until then it writes.

    Args:
        script: The script.
        arguments: What it finds in sys.argv after its name.
        quiet: Whether to hold back what the script prints.

    Raises:
        InvalidInput: If the script fails, or ends, before two updates.
    """
    environment = arena_environment(max(2**30, int(host_memory().free)))
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    return run_isolated(_measure, (str(script), tuple(arguments), quiet), environment=environment)


def _measure(script: str, arguments: Sequence[str], quiet: bool) -> MeasuredLoop:
    meter = _Meter()
    path = Path(script)
    error: BaseException | None = None
    with (
        contextlib.ExitStack() as undo,
        open(os.devnull, "w") if quiet else contextlib.nullcontext(sys.stdout) as output,  # noqa: PTH123
        contextlib.redirect_stdout(output),
    ):
        # A traced step's own update tells of itself so, in the main thread, when the step has returned.
        signal.signal(signal.SIGUSR1, lambda number, frame: meter.count())
        # For good: the process ends with the script.
        undo.callback(after_import("keras", lambda keras: intercept_updates(keras, path, meter.see_update)))
        try:
            run_script(path, arguments)
        except _Measured:
            pass
        except BaseException as raised:  # whatever the script raises, sys.exit() included
            error = raised
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    measured = meter.end(path.name)
    if measured is None:
        why = "" if error is None else f": {in_one_line(error)}"
        raise InvalidInput(
            f"A loop must run some updates to be measured, but the script ended after {meter.updates}{why}",
            received=script,
            remedy="Check that it trains without memfit; a step under XLA cannot be counted",
        )
    return measured


class _Meter:
    """Counts updates, and records the allocator while some of them run."""

    def __init__(self) -> None:
        self.updates = 0
        self._place = ""
        self._eager = False
        self._stack = contextlib.ExitStack()
        self._trace: Any = None
        self._base = 0
        self._peak = 0
        self._begun = 0.0

    def see_update(self, place: str, update: Callable[[], Any]) -> Any:
        """Counts an update when it is done; one that is traced tells of itself by a signal whenever it runs."""
        import tensorflow as tf

        result = update()
        self._place = self._place or place
        if tf.inside_function():
            tf.numpy_function(lambda: os.kill(os.getpid(), signal.SIGUSR1), [], [])
        else:
            self._eager = True
            self.count()
        return result

    def count(self) -> None:
        """Counts an update; after the first ones the allocator is recorded.

        Raises:
            _Measured: If enough of them were.
        """
        import tensorflow as tf

        from memfit.estimation.recording.trace import mark, traced

        self.updates += 1
        if self._trace is not None:
            mark()
        if self.updates == _WARM:
            gc.collect()
            tf.config.experimental.reset_memory_stats("CPU:0")
            self._base = tf.config.experimental.get_memory_info("CPU:0")["current"]
            self._trace = self._stack.enter_context(traced())
            self._begun = time.process_time()
        elif self.updates >= _WARM + _MEASURED or (
            self.updates > _WARM and time.process_time() - self._begun > _SECONDS
        ):
            raise _Measured

    def end(self, script: str) -> MeasuredLoop | None:
        """Ends the recording; returns what was measured, None where too few updates ran."""
        if self._trace is None:
            return None
        import tensorflow as tf

        peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
        self._stack.close()
        if self.updates <= _WARM:
            return None
        alive, before = _find_peak(self._trace, self._base)
        names = _name_layers()
        parts: Counter[str] = Counter({_BEFORE: before})
        tensors = []
        for event in alive:
            kind = names.kind(event.op, event.region, outlives_step=False)
            if self._eager and kind not in ("inputs", "workspace"):
                kind = _EAGER
            parts[kind] += event.requested
            asked_by = names.layer(event.op) or event.op.rpartition("/")[2]
            tensors.append(LoopTensor(Size(event.requested), kind, asked_by, event.shape))
        parts["rounding"] = max(0, peak - parts.total())
        top = sorted(tensors, key=lambda tensor: -tensor.bytes)[:10]
        sizes = {kind: Size(size) for kind, size in parts.items()}
        return MeasuredLoop(script, self._place, self.updates - _WARM, Size(peak), sizes, tuple(top))


def _find_peak(steps: Sequence[Sequence[Any]], base: int) -> tuple[list[Any], int]:
    """Returns what was made while it was recorded and lives at the peak, and the bytes there from before."""
    alive: dict[int, Any] = {}
    best: tuple[int, list[Any], int] = (base, [], base)
    made = 0
    for event in (event for step in steps for event in step):
        if not event.freed:
            alive[event.address] = event
            made += event.occupied
            if base + made > best[0]:
                best = (base + made, list(alive.values()), base)
        elif (known := alive.pop(event.address, None)) is not None:
            made -= known.occupied
        else:
            base -= event.occupied
    return best[1], best[2]


def _name_layers() -> Any:
    """Reads op names by the layers and optimizers that there are."""
    import keras

    from memfit.estimation.replay.naming import Names

    layers, optimizers = set(), set()
    for each in gc.get_objects():
        with contextlib.suppress(Exception):  # proxies of all kinds
            if isinstance(each, keras.layers.Layer):
                layers.add(each.name)
            elif isinstance(each, keras.optimizers.Optimizer):
                optimizers.add(each.name)
    return Names(layers, *optimizers)
