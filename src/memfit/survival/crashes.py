"""Why a training process ended: by itself, by a signal, or for want of memory."""

import signal
from dataclasses import dataclass
from pathlib import Path

from memfit.errors import ProcessDied
from memfit.oom.explanation import Explanation
from memfit.oom.reading import read_error
from memfit.scaling.survivors import LOST_A_RANK

# What ends a process from outside or below Python; whatever else ends it is the script's own doing.
_CRASHES = {signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
# By whether it was SIGKILL, and whether there is evidence that memory was the cause: what it was, and where a
# person at the terminal finds more.
_LIKELY = {
    (True, True): ("the kernel's OOM killer: the host or container ran out of memory", ""),
    (True, False): ("kill -9 or a scheduler; the kernel counted no OOM kill", ""),
    (False, True): ("out of memory, according to TensorFlow's last lines", "see the lines above"),
    (False, False): ("a crash in native code", "the lines above may say more"),
}


@dataclass(frozen=True)
class Crash:
    """The end of a training process that its script did not want.

    Attributes:
        cause: The signal's name, or "out of memory" for an error that the script let through.
        memory: Whether memory was the cause, as far as there is evidence.
        exit_code: What the shell would say of it.
        likely: The likely cause, in words.
        hint: Where a person at the terminal finds more, or empty.
    """

    cause: str
    memory: bool
    exit_code: int
    likely: str = ""
    hint: str = ""


def judge_exit(
    exit_code: int | None, log: str, *, said_memory: bool, killed_for_memory: bool, in_job: bool = False
) -> Crash | None:
    """Judges the end of a process; None where the script ended as it wanted to.

    Args:
        exit_code: As `subprocess` gives it: negative for a signal. None for a process that did not end by itself
            when the other ranks of its job had.
        log: The last lines of its error stream.
        said_memory: Whether it ended with an out-of-memory error.
        killed_for_memory: Whether the kernel has killed a process for want of memory meanwhile.
        in_job: Whether it was one of several ranks.
    """
    if exit_code is None:
        return Crash("no answer", False, 128 + signal.SIGKILL, "its process or machine does not respond")
    if in_job and exit_code == LOST_A_RANK:
        return Crash("another rank is gone", False, exit_code, "see that rank's own output")
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number in _CRASHES:
        name = signal.Signals(number).name
        memory = killed_for_memory if number == signal.SIGKILL else _speaks_of_memory(log)
        return Crash(name, memory, 128 + number, *_LIKELY[number == signal.SIGKILL, memory])
    if exit_code > 0 and said_memory:
        likely = "a step, or something else in memory, needs more than is available"
        return Crash("out of memory", True, exit_code, likely, "the error above says what asked for memory")
    return None


def explain_crash(crash: Crash, log: str) -> Explanation:
    """Explains a crash from its log, or from the signal alone where the log says nothing."""
    told = read_error(log)
    if told.ran_out != "unknown" or crash.exit_code < 128:
        return told
    return read_error(ProcessDied(128 - crash.exit_code))


def count_kernel_kills(root: Path = Path("/")) -> int:
    """Returns how many processes the kernel has killed for want of memory, on this machine and in this cgroup."""
    counts = _counts(root / "proc/vmstat") + _counts(root / "sys/fs/cgroup/memory.events")
    return sum(counts)


def _speaks_of_memory(log: str) -> bool:
    told = read_error(log)
    return told.ran_out in ("device", "host", "block") and told.cause not in ("killed", "segfault")


def _counts(file: Path) -> list[int]:
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return []
    return [int(word[1]) for word in words if len(word) == 2 and word[0] == "oom_kill"]
