"""The room's interface: an error or a log in, an `Explanation` out."""

import re
import traceback
from dataclasses import replace

from memfit.budgets.budget import budget
from memfit.errors import InvalidInput, ProcessDied
from memfit.oom.explanation import Explanation
from memfit.oom.remedies import find_changes
from memfit.oom.verdict import judge
from memfit.sizes import Size

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def read_error(error: BaseException | str, batch_size: int | None = None) -> Explanation:
    """Reads what an exception or a log says about memory that ran out.

    Args:
        error: An exception, or text: a log, a traceback, or both.
        batch_size: The batch that was trained with, where it is known; half of it is among the changes.

    Raises:
        InvalidInput: If `error` is neither, or `batch_size` is not positive.

    Example:
        >>> text = "OOM when allocating tensor with shape[64,112,112,64] and type float on "
        >>> text += "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
        >>> read_error(text).asked.bytes
        Size('196 MiB')
    """
    if batch_size is not None and batch_size < 1:
        raise InvalidInput("`batch_size` is a positive number of samples", received=batch_size)
    explanation = judge(_COLOURS.sub("", _text(error)))
    if isinstance(error, BaseException) and explanation.limit is None:
        explanation = replace(explanation, limit=_limit_of(explanation.device))
    return replace(explanation, changes=find_changes(explanation, batch_size))


def _limit_of(device: str) -> Size | None:
    """What the device has, for an exception of this process: its text does not say."""
    devices = budget().devices
    return devices[0].total if devices and device in ("arena", "GPU:0") else None


def _text(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, ProcessDied) and error.signal is not None:
        return error.signal.name  # its message speaks of memory for every signal, as a guess
    if isinstance(error, BaseException):
        return "".join(traceback.format_exception(error))
    raise InvalidInput("Only an exception or a text can be explained", received=type(error).__name__)
