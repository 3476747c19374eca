"""What became of trials: one row each, an out-of-memory or a crash included."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from memfit.showing import Shown
from memfit.sizes import Size, to_plain
from memfit.tables import table

DONE, OUT_OF_MEMORY, FAILED, DIED = "done", "out of memory", "failed", "died"
_LONGEST_ERROR = 70  # of a row of the table; the trial's own `error` has it whole
_LONGEST_VALUE = 40


@dataclass(frozen=True)
class Trial:
    """What became of one setting.

    Attributes:
        setting: What the function was called with.
        status: "done", "out of memory", "failed" (it raised something else) or "died" (its process ended without a
            result: a signal, a crash).
        value: What the function returned; None where it did not.
        error: What went wrong, as one line; empty where nothing did.
        traceback: The traceback in the trial's process, where something was raised.
        peak: The most memory it took (measured): of the device or the arena, or, where training has its memory
            from the host, of the process. None for a process that died.
        need: What was reserved for it beside other trials; None where it ran by itself.
        need_source: What that figure is: "predicted" for the model of its first `fit`, or "measured" in trials
            that had ended before.
        seconds: What the function took, without the time in which memfit predicted or it waited for memory.
    """

    setting: Any
    status: str
    value: Any = None
    error: str = ""
    traceback: str = ""
    peak: Size | None = None
    need: Size | None = None
    need_source: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, repr=False)
class Trials(Shown):
    """The results of `memfit.trials`, in the order of the settings: a sequence of `Trial`.

    Attributes:
        trials: One for each setting.
        memory: What all of them together were to take.
        memory_source: Where that figure came from.
        side_by_side: The most that ran at the same time.
        together: The most that was reserved at the same time; 0 where nothing ran side by side.
        seconds: What all of it took.
    """

    trials: tuple[Trial, ...]
    memory: Size
    memory_source: str
    side_by_side: int
    together: Size
    seconds: float

    def __len__(self) -> int:
        return len(self.trials)

    def __getitem__(self, index: int) -> Trial:
        return self.trials[index]

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __repr__(self) -> str:
        rows = [
            [
                number,
                _cut(repr(trial.setting), _LONGEST_VALUE),
                trial.status,
                _cut(repr(trial.value), _LONGEST_VALUE)
                if trial.status == DONE
                else _cut(trial.error, _LONGEST_ERROR),
                "" if trial.need is None else f"{trial.need} ({trial.need_source})",
                "" if trial.peak is None else trial.peak,
                f"{trial.seconds:.1f} s",
            ]
            for number, trial in enumerate(self.trials)
        ]
        head = ["", "setting", "status", "value or error", "reserved", "peak (measured)", "time"]
        counts = Counter(trial.status for trial in self.trials)
        told = ", ".join(f"{counts[status]} {status}" for status in (DONE, OUT_OF_MEMORY, FAILED, DIED))
        return (
            f"{table(rows, head=head, right=[0, 4, 5, 6])}\n\n"
            f"{len(self)} trials: {told}; {self.seconds:.1f} s, at most {self.side_by_side} side by side "
            f"in {self.memory} ({self.memory_source})"
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the results as plain data, sizes in bytes; a setting or value that is none as its `repr`."""
        plain = [
            to_plain(replace(trial, setting=None, value=None))
            | {"setting": _plain(trial.setting), "value": _plain(trial.value)}
            for trial in self.trials
        ]
        return to_plain(replace(self, trials=())) | {"trials": plain}


def _cut(text: str, longest: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _plain(value.item()) if getattr(value, "shape", None) == () else repr(value)
