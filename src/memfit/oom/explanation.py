"""`memfit.explain`: what ran out, who asked, what held the memory, and what would help most."""

import re
import textwrap
import traceback
from dataclasses import asdict, dataclass, replace
from typing import Any

from memfit.budgets.budget import budget
from memfit.errors import InvalidInput, ProcessDied
from memfit.oom.remedies import Change, changes
from memfit.oom.request import Request
from memfit.oom.verdict import Held, Verdict, judge
from memfit.planning.explaining import predicted
from memfit.sizes import Size
from memfit.tables import table

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_WIDTH = 98  # with its heads the whole is 109 columns wide
_WORTH_SAYING = 0.05  # of what is in use
_PLACES = {"device": "device memory", "host": "host memory", "block": "a large enough piece of memory"}


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a text or an error says about memory that ran out.

    Attributes:
        ran_out: "device", "host", "block" (enough was free, but not in one piece: fragmentation), "nothing"
            (the text only warns) or "unknown".
        cause: The kind of failure, finer than `ran_out`, such as "xla" or "others" (another process).
        says: The verdict as a sentence.
        device: "GPU:0", "arena", "host", or "" where the text does not say.
        requested: Bytes asked for; None, here and below, where the text does not say.
        limit: Bytes there were in all.
        in_use: Bytes in use.
        largest_free: The largest free piece.
        wasted: Bytes in use that nobody asked for: the allocator's rounding.
        asked: The layer, op, tensor and phase that asked.
        held: What held the memory, largest first.
        failures: How many failed allocations the text tells of; the explanation is about the decisive one.
        changes: At most three, best first.
    """

    ran_out: str
    cause: str
    says: str
    device: str
    requested: Size | None
    limit: Size | None
    in_use: Size | None
    largest_free: Size | None
    wasted: Size | None
    asked: Request | None
    held: tuple[Held, ...]
    failures: int
    changes: tuple[Change, ...]

    def __repr__(self) -> str:
        place = _PLACES.get(self.ran_out, self.ran_out)
        where = f" ({self.device})" if self.device and self.device != self.ran_out else ""
        told = [
            ("ran out", f"{place}{where}: {self.says}"),
            ("figures", self._figures()),
            ("asked", "" if self.asked is None else str(self.asked)),
            ("held", ", ".join(f"{held.size} ({held.what})" for held in self.held)),
            (
                "note",
                f"{self.failures} allocations failed; this is about the decisive one" * (self.failures > 1),
            ),
        ]
        for number, change in enumerate(self.changes, 1):
            told += [
                (f"change {number}", change.do),
                ("", "; ".join(filter(None, (change.why, change.effect)))),
            ]
        return table([row for head, text in told if text for row in _wrapped(head, text)])

    def _figures(self) -> str:
        parts = [] if self.requested is None else [f"{self.requested} asked for"]
        if self.limit is not None and self.in_use is not None and self.cause == "others":
            parts.append(f"{self.in_use} in use, below the limit of {self.limit}")
        elif self.limit is not None and self.in_use is not None:
            parts.append(f"{Size(max(self.limit - self.in_use, 0))} free of {self.limit}")
        elif self.in_use is not None:
            parts.append(f"{self.in_use} in use")
        elif self.limit is not None:
            parts.append(f"{self.limit} in all")
        if self.ran_out == "block" and self.largest_free is not None:
            parts.append(f"{self.largest_free} in the largest piece")
        if self.wasted is not None and self.in_use and self.wasted >= _WORTH_SAYING * self.in_use:
            parts.append(f"{self.wasted} lost to the allocator's rounding")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Returns the explanation as plain data, sizes in bytes."""
        plain = asdict(self)
        for name in ("requested", "limit", "in_use", "largest_free", "wasted"):
            plain[name] = None if plain[name] is None else int(plain[name])
        plain["held"] = [{"what": held.what, "size": int(held.size)} for held in self.held]
        return plain


def _wrapped(head: str, text: str) -> list[list[str]]:
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [[head if number == 0 else "", line] for number, line in enumerate(lines)]


def explain(error: BaseException | str, model: Any = None, batch_size: int | None = None) -> Explanation:
    """Explains an out-of-memory error, or the log of a run that ended with one.

    It knows the texts of TensorFlow 2's allocators on GPU and CPU, of XLA, cuDNN, cuBLAS and CUDA, of NumPy, and
    those of the system when it ends a process. A text that it does not know is said to be unknown.

    Args:
        error: An exception, or text: a log, a traceback, or both.
        model: The compiled Keras model that was trained. With it and `batch_size` the changes come with
            predicted effects.
        batch_size: The batch it was trained with.

    Returns:
        An `Explanation`, whose `repr` is a few lines to read.

    Raises:
        InvalidInput: If `error` is neither, or `batch_size` is not positive.

    Example:
        >>> text = "OOM when allocating tensor with shape[64,112,112,64] and type float on "
        >>> text += "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
        >>> explain(text).asked.bytes
        Size('196 MiB')
    """
    if batch_size is not None and batch_size < 1:
        raise InvalidInput("`batch_size` is a positive number of samples", received=batch_size)
    verdict = judge(_COLOURS.sub("", _text(error)))
    if isinstance(error, BaseException) and verdict.limit is None:
        verdict = replace(verdict, limit=_limit_here(verdict.device))
    best = changes(verdict, batch_size)
    if model is not None and batch_size is not None:
        best = predicted(best, verdict, model, batch_size)
    return _explanation(verdict, best)


def _limit_here(device: str) -> Size | None:
    """What the device has, for an exception of this process: its text does not say."""
    devices = budget().devices
    return devices[0].total if devices and device in ("arena", "GPU:0") else None


def _explanation(verdict: Verdict, best: tuple[Change, ...]) -> Explanation:
    return Explanation(
        ran_out=verdict.ran_out,
        cause=verdict.cause,
        says=verdict.says,
        device=verdict.device,
        requested=verdict.requested,
        limit=verdict.limit,
        in_use=verdict.in_use,
        largest_free=verdict.largest_free,
        wasted=verdict.wasted,
        asked=verdict.request,
        held=verdict.held,
        failures=verdict.failures,
        changes=best,
    )


def _text(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, ProcessDied) and error.signal is not None:
        return error.signal.name  # its message speaks of memory for every signal, as a guess
    if isinstance(error, BaseException):
        return "".join(traceback.format_exception(error))
    raise InvalidInput("Only an exception or a text can be explained", received=type(error).__name__)
