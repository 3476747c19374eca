"""Making the table: every variant is built, counted, compared on the sample and, while the time lasts, recorded."""

import logging
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

from memfit.budgets.gpu_table import GPU
from memfit.errors import InvalidInput
from memfit.sizes import Size
from memfit.slimming.closeness import Closeness, compare_outputs, predict_sample, shorten_sample
from memfit.slimming.peaks import FROM_SHAPES, RECORDED, Peaks, Recorded, Recordings, scale, step_seconds
from memfit.slimming.rebuilding import CannotSlim
from memfit.slimming.shapes import Shapes, read_shapes
from memfit.slimming.slimmed import ORIGINAL, Figure, Slimmed, SlimRow
from memfit.slimming.variants.combination import Combination
from memfit.slimming.variants.variant import Made, Variant

_progress = logging.getLogger("memfit.progress")
# After which no recording is begun that would not end within a minute: one of ResNet50 takes 20 s of a core.
SECONDS = 50.0
# Beside another recording a step runs its ops in another order, and its peak was seen to be a quarter higher.
_AT_A_TIME = 1
# Models that wait to be recorded, with all of their weights.
_WAITING = 3
_COMBINED = 3  # variants in one
_TRIED = 2  # combinations


@dataclass(frozen=True, eq=False)
class Job:
    """What a table is made for.

    Attributes:
        model: The original.
        batch_size: Samples in a step.
        memory: What a training may take, or None.
        data: What tells the shapes of a batch, or None.
        sample: The inputs to compare outputs on, or None.
        device: A GPU, or None.
    """

    model: Any
    batch_size: int
    memory: Size | None
    data: Any
    sample: Any
    device: GPU | None


@dataclass(frozen=True, eq=False)
class _Built:
    """A variant that was built, before its peak is known."""

    variant: Variant | None
    amount: float
    made: Made
    shapes: Shapes
    file: Figure
    closeness: Closeness | None
    recorded: "Future[Recorded] | None"


def compare(job: Job, variants: Sequence[tuple[Variant, float]], seconds: float | None = None) -> Slimmed:
    """Makes the table of a job.

    Args:
        job: What it is made for.
        variants: What to compare, each with its amount.
        seconds: After so long no recording is begun, `SECONDS` unless told; the rest is predicted from shapes.

    Raises:
        InvalidInput: If none of the variants can be made.
        StepFailed: If the original's step fails on synthetic data.
    """
    return _Comparison(job, SECONDS if seconds is None else seconds).run(variants)


class _Comparison:
    """One table in the making."""

    def __init__(self, job: Job, seconds: float) -> None:
        self._job = job
        self._begin = time.monotonic()
        self._recordings = Recordings(job.batch_size, job.device, seconds)
        self._room = threading.Semaphore(_WAITING)
        self._shapes = read_shapes(job.model)
        self._outputs: Any = None

    def run(self, variants: Sequence[tuple[Variant, float]]) -> Slimmed:
        """Makes the table."""
        self._variants = [variant for variant, _ in variants]
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            self._pool = pool
            original = pool.submit(self._recordings.record, self._job.model, self._job.data, first=True)
            _progress.info("recording the original")
            if self._job.sample is not None:
                self._sample = shorten_sample(self._job.model, self._job.sample)
                self._outputs = predict_sample(self._job.model, self._sample)
            entries = [self._build(variant, amount) for variant, amount in variants]
            stock = original.result()
            training = stock.training
            assert training is not None  # the first is recorded in any case
            self._training = training
            self._parts = cache(lambda batch: training.sketch(batch).breakdown)
            entries = [self._record_later(entry) for entry in entries]
            rows = [self._original_row(stock), *self._rows(entries)]
            if not any(row.make for row in rows[1:]):
                reasons = "; ".join(f"{row.name}: {row.why_not}" for row in rows[1:])
                raise InvalidInput(f"There is nothing to slim in this model ({reasons})")
            rows += self._combine(rows)
        job = self._job
        return Slimmed(
            tuple(rows),
            job.batch_size,
            job.memory,
            None if job.device is None else job.device.name,
            0 if self._outputs is None else len(self._outputs[0]),
            time.monotonic() - self._begin,
            training.source,
        )

    def _build(self, variant: Variant, amount: float) -> "_Built | SlimRow":
        _progress.info("building %s", variant.name)
        refused = partial(SlimRow, variant.name, variant.label(amount))
        if (reason := variant.why_not(self._job.model)) is not None:
            return refused(why_not=reason)
        try:
            made = variant.make(self._job.model, amount)
        except CannotSlim as error:
            return refused(why_not=str(error))
        shapes = read_shapes(made.model)
        closeness = None
        if self._outputs is not None:
            outputs = predict_sample(made.model, self._sample)
            closeness = compare_outputs(self._outputs, outputs)
        file = _file_size(made, shapes)
        recorded = None
        if made.trains and self._room.acquire(blocking=False):
            recorded = self._submit(variant, made.model)
        # The model itself is wanted no more: large ones would not fit side by side.
        return _Built(variant, amount, replace(made, model=None), shapes, file, closeness, recorded)

    def _record_later(self, entry: "_Built | SlimRow") -> "_Built | SlimRow":
        """Records a variant that others were recorded before, if there is time: it is built once more."""
        if isinstance(entry, SlimRow) or entry.recorded is not None or not entry.made.trains:
            return entry
        self._room.acquire()
        if self._recordings.time_is_up or entry.variant is None:
            self._room.release()
            return entry
        model = entry.variant.make(self._job.model, entry.amount).model
        return replace(entry, recorded=self._submit(entry.variant, model))

    def _submit(self, variant: Variant, model: Any) -> "Future[Recorded]":
        data = None if variant.resizes else self._job.data
        return self._pool.submit(self._record, model, data, variant.name)

    def _record(self, model: Any, data: Any, name: str) -> Recorded:
        try:
            if not self._recordings.time_is_up:
                _progress.info("recording %s", name)
            return self._recordings.record(model, data)
        finally:
            self._room.release()

    def _rows(self, entries: "Sequence[_Built | SlimRow]") -> list[SlimRow]:
        return [self._row(entry) if isinstance(entry, _Built) else entry for entry in entries]

    def _original_row(self, recorded: Recorded) -> SlimRow:
        built = _Built(None, 1.0, Made(None), self._shapes, _weights_size(self._shapes), None, None)
        row = self._figures(built, recorded)
        return replace(row, name=ORIGINAL, label=ORIGINAL, make=lambda: self._job.model)

    def _row(self, built: _Built) -> SlimRow:
        recorded = Recorded() if built.recorded is None else built.recorded.result()
        row = self._figures(built, recorded)
        notes = list(built.made.notes)
        if recorded.failure:
            notes.append(f"its step could not be recorded: {recorded.failure}")
        if row.peak is not None and row.peak.value >= 0.99 * self._training.peak:
            notes.append("saves no training memory")
        model, made_by, amount = self._job.model, built.variant, built.amount
        assert made_by is not None
        return replace(row, notes=tuple(notes), make=lambda: made_by.make(model, amount).model)

    def _figures(self, built: _Built, recorded: Recorded) -> SlimRow:
        shapes, size, memory = built.shapes, self._job.batch_size, self._job.memory
        row = SlimRow(
            "" if built.variant is None else built.variant.name,
            "" if built.variant is None else built.variant.label(built.amount),
            _figure(shapes.parameters, "counted", "weights"),
            file=built.file,
            flops=_figure(shapes.flops, "counted", "layer shapes, forward, one sample"),
            step_time=self._step_time(recorded),
            energy=_figure(built.made.energy, "counted", "squares of the changed weights"),
        )
        if recorded.inference is not None:
            inference = _figure(int(recorded.inference.peak), "predicted", "a recorded prediction")
            row = replace(row, inference=inference)
        elif shapes.live is not None:
            live = shapes.weights + size * shapes.live
            row = replace(row, inference=_figure(live, "predicted", "layer shapes"))
        if (peaks := self._peaks(built, recorded)) is not None:
            row = replace(row, peak=_figure(int(peaks.at(size)), "predicted", peaks.source))
            if memory is not None:
                largest = _figure(peaks.largest_batch(memory), "predicted", peaks.source)
                row = replace(row, largest_batch=largest, fits=peaks.needed(size) <= memory)
        if (closeness := built.closeness) is not None:
            error, agreement = (
                _figure(value, "measured", "outputs on the sample")
                for value in (closeness.error, closeness.agreement)
            )
            row = replace(row, error=error, agreement=agreement)
        return row

    def _peaks(self, built: _Built, recorded: Recorded) -> Peaks | None:
        if not built.made.trains:
            return None
        margin = self._training.margin
        if (own := recorded.training) is not None:
            return Peaks(lambda batch: own.sketch(batch).peak, RECORDED, margin)
        shapes, before = built.shapes, self._shapes
        if not shapes.activations or not before.activations:  # they say nothing
            return None
        return Peaks(lambda batch: scale(self._parts(batch), shapes, before), FROM_SHAPES, margin)

    def _step_time(self, recorded: Recorded) -> Figure | None:
        stock = step_seconds(self._training)
        own = None if recorded.training is None else step_seconds(recorded.training)
        if stock is None or own is None:
            return None
        ratio = (own[1] / own[0]) / max(stock[1] / stock[0], 1e-9)
        return Figure(round(ratio, 3), "measured", f"CPU time of a step of batch {own[0]}, for each sample")

    def _combine(self, rows: Sequence[SlimRow]) -> list[SlimRow]:
        """Combines variants until some fit, where none does alone."""
        job = self._job
        if job.memory is None or any(row.fits for row in rows):
            return []
        stock = rows[0].peak
        assert stock is not None
        useful = [
            (row, row.peak.value / stock.value)
            for row in rows[1:]
            if row.peak is not None and row.peak.value < 0.95 * stock.value
        ]
        guesses = []
        for count in range(2, _COMBINED + 1):
            for parts in combinations(useful, count):
                peak = stock.value
                for _, ratio in parts:
                    peak *= ratio
                guesses.append((peak > job.memory, count, peak, [row.name for row, _ in parts]))
        # Those that should fit first, and of these the fewest changes; the least of all where none should.
        guesses.sort(key=lambda guess: (guess[0], guess[1] if not guess[0] else 0, guess[2]))
        known = {variant.name: variant for variant in self._variants}
        combined: list[SlimRow] = []
        for _, _, _, names in guesses[:_TRIED]:
            combination = Combination(tuple(known[name] for name in names))
            combined += self._rows([self._record_later(self._build(combination, 1))])
        return combined


def _figure(value: float | None, known: str, source: str) -> Figure | None:
    return None if value is None else Figure(value, known, source)


def _weights_size(shapes: Shapes) -> Figure:
    return Figure(shapes.weights, "counted", "bytes of its weights")


def _file_size(made: Made, shapes: Shapes) -> Figure:
    """The bytes of the weights; of a quantised model those of a file that is really written."""
    if made.trains:
        return _weights_size(shapes)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.weights.h5")
        made.model.save_weights(file)
        return Figure(file.stat().st_size, "measured", "a file that was written")
