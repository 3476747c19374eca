"""The table of variants, and one row of it: every figure says whether it was predicted, measured or counted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from memfit.errors import InvalidInput
from memfit.showing import Shown
from memfit.sizes import Size
from memfit.tables import table

ORIGINAL = "original"


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        value: The figure itself: bytes, a number, or a part of 1.
        known: "predicted", "measured" or "counted".
        source: What from.
    """

    value: float
    known: str
    source: str

    @property
    def is_rough(self) -> bool:
        """Whether it comes from layer shapes only, where others come from a recorded step."""
        return self.known == "predicted" and "shapes" in self.source


@dataclass(frozen=True)
class SlimRow:
    """One variant of a model, with what it takes and how close to the original it is.

    Attributes:
        name: What it is called.
        label: The name with its amount.
        parameters: Values in all weights.
        peak: Peak bytes of a training step at the table's batch; None where it is not trained, or not known.
        largest_batch: The largest batch that trains in the table's memory.
        inference: Peak bytes of a prediction at the same batch.
        file: Bytes of its weights in a file.
        flops: Of the forward pass of one sample; a product and its sum are two.
        step_time: CPU time of a training step a sample, as a multiple of the original's.
        error: The norm of the difference to the original's outputs, before any training, as a part of their norm.
        agreement: The share of samples with the same largest output.
        energy: The share of the changed weights' squares that is kept.
        fits: Whether it trains at the table's batch in the table's memory; None without one.
        notes: What to know of it.
        why_not: Why it cannot be built from this model; empty where it can.
    """

    name: str
    label: str
    parameters: Figure | None = None
    peak: Figure | None = None
    largest_batch: Figure | None = None
    inference: Figure | None = None
    file: Figure | None = None
    flops: Figure | None = None
    step_time: Figure | None = None
    error: Figure | None = None
    agreement: Figure | None = None
    energy: Figure | None = None
    fits: bool | None = None
    notes: tuple[str, ...] = ()
    why_not: str = ""
    make: Callable[[], Any] | None = field(default=None, compare=False, repr=False)

    def model(self) -> Any:
        """Builds the variant: a compiled Keras model with the original's weights carried over.

        Raises:
            InvalidInput: If it cannot be built from this model.
        """
        if self.make is None:
            raise InvalidInput(f"{self.name!r} cannot be built from this model: {self.why_not}")
        return self.make()

    def to_json(self) -> dict[str, Any]:
        """Returns the row as plain data."""
        plain: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Figure):
                value = {"value": value.value, "known": value.known, "source": value.source}
            if each.name != "make":
                plain[each.name] = list(value) if isinstance(value, tuple) else value
        return plain


# Each column: its head, the row's attribute, and how a figure is written.
Column = tuple[str, str, Callable[[float], str]]


def _write_count(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def _write_share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 or 0.9 < value < 1 else f"{value:.0%}"


COLUMNS: tuple[Column, ...] = (
    ("parameters", "parameters", _write_count),
    ("training peak", "peak", lambda value: str(Size(int(value)))),
    ("largest batch", "largest_batch", lambda value: f"{value:.0f}"),
    ("inference peak", "inference", lambda value: str(Size(int(value)))),
    ("file", "file", lambda value: str(Size(int(value)))),
    ("FLOPs", "flops", _write_count),
    ("step time", "step_time", lambda value: f"{value:.2f}x"),
    ("output error", "error", _write_share),
    ("same top-1", "agreement", _write_share),
    ("energy kept", "energy", _write_share),
)


@dataclass(frozen=True, repr=False)
class Slimmed(Shown):
    """Variants of a model, side by side; `table["narrow"].model()` builds one.

    Attributes:
        rows: The original first, then every variant, those that cannot be made included.
        batch_size: Samples in a step.
        memory: What a training may take; None where that was not said.
        device: The GPU the figures are for, or None.
        samples: How many samples the closeness was measured on.
        seconds: How long the table took.
        source: Where the peaks come from, as the original's estimate says it.
    """

    rows: tuple[SlimRow, ...]
    batch_size: int
    memory: Size | None
    device: str | None
    samples: int
    seconds: float
    source: str

    def __getitem__(self, name: str) -> SlimRow:
        for row in self.rows:
            if name.lower() in (row.name.lower(), row.label.lower()):
                return row
        raise InvalidInput(
            "There is no such variant in this table",
            received=name,
            remedy=f"It has {', '.join(repr(row.name) for row in self.rows)}",
        )

    def __iter__(self) -> Iterator[SlimRow]:
        return iter(self.rows)

    @property
    def fitting(self) -> tuple[SlimRow, ...]:
        """The variants that train at the batch in the memory."""
        return tuple(row for row in self.rows if row.fits)

    @property
    def verdict(self) -> str:
        """What fits, in a sentence; where nothing does, what comes nearest. Empty without a memory."""
        if self.memory is None:
            return ""
        where = f"batch {self.batch_size} in {self.memory}"
        if self.rows[0].fits:
            return f"{where}: fits as it is"
        if self.fitting:
            rough = {row.name for row in self.fitting if row.peak is not None and row.peak.is_rough}
            names = [f"{row.name} (~)" if row.name in rough else row.name for row in self.fitting]
            return f"{where}: {', '.join(names)} {'fits' if len(names) == 1 else 'fit'}"
        trained = [row for row in self.rows if row.peak is not None]
        nearest = min(trained, key=lambda row: row.peak.value if row.peak else 0.0)
        assert nearest.peak is not None
        peak = Size(int(nearest.peak.value))
        return f"{where}: no variant fits; the nearest is {nearest.name}, which peaks at {peak}"

    @property
    def head(self) -> list[str]:
        """The columns' names."""
        return ["variant", *(name for name, _, _ in self._columns)]

    @property
    def cells(self) -> list[list[str]]:
        """The rows as text; the first says what is predicted, measured and counted."""
        known = [self._known(attribute) for _, attribute, _ in self._columns]
        return [["", *known], *([row.label, *self._write(row)] for row in self._made)]

    @property
    def remarks(self) -> list[str]:
        """What to know below the table: of each variant, of those that cannot be made, and of the figures."""
        notes = [f"{row.name}: {'; '.join(row.notes)}" for row in self._made if row.notes]
        missing = [f"{row.name}: not made: {row.why_not}" for row in self.rows if row.why_not]
        told = [f"peaks: {self.source}"]
        if any(row.peak is not None and row.peak.is_rough for row in self.rows):
            told.append(
                "~ predicted from layer shapes beside the recorded original; memfit.estimate of table[...].model() "
                "records it"
            )
        elif any(row.inference is not None and row.inference.is_rough for row in self.rows):
            told.append("~ predicted from layer shapes")
        if any(row.file is not None and row.file.known == "measured" for row in self.rows):
            told.append(
                "file: the bytes of the weights; of a quantised model, those of a file that was written"
            )
        if self.samples:
            told.append(
                f"output error and top-1 on {self.samples} samples before any training; they do not predict the "
                "accuracy after it"
            )
        else:
            told.append("closeness was not measured: pass a sample, data=(x, y)")
        return [*notes, *missing, *told]

    @property
    def _made(self) -> list[SlimRow]:
        return [row for row in self.rows if not row.why_not]

    @property
    def _columns(self) -> list[Column]:
        return [column for column in COLUMNS if any(getattr(row, column[1]) is not None for row in self.rows)]

    def _known(self, attribute: str) -> str:
        figures = (getattr(row, attribute) for row in self._made)
        return next((figure.known for figure in figures if figure is not None), "")

    def _write(self, row: SlimRow) -> list[str]:
        written = []
        for _, attribute, write in self._columns:
            figure = getattr(row, attribute)
            rough = "~" if figure is not None and figure.is_rough else ""
            written.append("-" if figure is None else rough + write(figure.value))
        return written

    def to_json(self) -> dict[str, Any]:
        """Returns the table as plain data, sizes in bytes."""
        return {
            "batch_size": self.batch_size,
            "memory": None if self.memory is None else int(self.memory),
            "device": self.device,
            "samples": self.samples,
            "seconds": round(self.seconds, 1),
            "source": self.source,
            "verdict": self.verdict,
            "variants": [row.to_json() for row in self.rows],
        }

    def __repr__(self) -> str:
        where = "" if self.device is None else f", {self.device}"
        lines = [f"Variants at batch {self.batch_size}{where}", ""]
        lines.append(table(self.cells, head=self.head, right=range(1, len(self.head))))
        lines += ["", *self.remarks]
        return "\n".join([*lines, *([self.verdict] if self.verdict else [])])
