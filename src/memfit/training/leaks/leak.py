"""`Leak` and `Leaks`: what grows, what holds it, the line that lets it grow, and what to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memfit.showing import Shown
from memfit.sizes import Size, to_plain
from memfit.tables import table


@dataclass(frozen=True)
class Leak:
    """Memory that grows steadily.

    Attributes:
        where: "host" or "device".
        kind: What grows: "container", "array", "cache", "traced function", "graph", "library" or "native".
        holder: What holds it, as the user writes it, such as `trainer.losses`.
        line: The line of the user's code that lets it grow, as `file:line`; empty where none was seen to.
        per_minute: Bytes it grows by in a minute.
        per_item: Bytes of one item, trace or op; 0 where there is no such thing.
        fix: What to do about it.
    """

    where: str
    kind: str
    holder: str
    line: str
    per_minute: Size
    per_item: Size
    fix: str

    def __str__(self) -> str:
        at = f" at {_short(self.line)}" if self.line else ""
        each = f" ({self.per_item} each)" if self.per_item else ""
        return f"{self.where} memory grows by {self.per_minute} a minute: {self.holder}{at}{each}. {self.fix}"

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain data, sizes in bytes."""
        return to_plain(self)


@dataclass(frozen=True, repr=False)
class Leaks(Shown):
    """What was seen to grow steadily, the fastest first; empty is good.

    Attributes:
        leaks: The leaks.
        seconds: For how long was watched.
    """

    leaks: tuple[Leak, ...] = ()
    seconds: float = 0.0

    def __iter__(self) -> Iterator[Leak]:
        return iter(self.leaks)

    def __len__(self) -> int:
        return len(self.leaks)

    def __getitem__(self, index: int) -> Leak:
        return self.leaks[index]

    def __repr__(self) -> str:
        if not self.leaks:
            return f"No memory grows steadily (watched for {self.seconds:.0f} s)."
        blocks = []
        for leak in self.leaks:
            rows = [["held by", leak.holder], ["grows at", _short(leak.line) or "no line of your code"]]
            rows += [["each", str(leak.per_item)]] if leak.per_item else []
            text = table([*rows, ["fix", leak.fix]])
            title = f"{leak.where} memory grows by {leak.per_minute} a minute ({leak.kind})"
            blocks.append("\n".join([title, *("  " + line for line in text.splitlines())]))
        return "\n".join(blocks)

    def to_json(self) -> dict[str, Any]:
        """Returns the leaks as plain data, sizes in bytes."""
        return {"seconds": round(self.seconds, 2), "leaks": [leak.to_json() for leak in self.leaks]}


def _short(line: str) -> str:
    file, colon, number = line.rpartition(":")
    path = Path(file)
    if colon and path.is_absolute() and path.is_relative_to(Path.cwd()):
        return f"{path.relative_to(Path.cwd())}:{number}"
    return line


_FIXES = {
    "container": "Keep what is needed of an item (float(loss), x.numpy()), or bound it: deque(maxlen=...)",
    "array": "Collect the parts in a list of known length, or write them to a file, instead of a longer copy",
    "cache": "Give it a bound: functools.lru_cache(maxsize=128), or clear it: cache_clear()",
    "traced function": "Pass tensors of one shape instead of Python numbers or new shapes "
    "(tf.constant, input_signature, reduce_retracing=True), and define it outside of the loop",
    "graph": "Build all ops before the loop, and let graph.finalize() tell where more are added",
    "library": "Build models and functions before the loop; between models: memfit.release()",
    "native": "No Python object grows with it: close iterators, writers and tapes, or run it in memfit.isolated",
}


def advise(kind: str) -> str:
    """Returns what to do about a kind of leak."""
    return _FIXES[kind] + "."
