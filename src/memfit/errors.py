"""The errors memfit raises: each says the rule, what was received, and the remedy."""

import re
import signal

# Colours of a terminal, which Keras writes into its messages.
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST_TOLD = 400
_NOTHING = object()  # None is a value that can be received


class MemfitError(Exception):
    """The base class of memfit's errors."""


def in_one_line(error: BaseException) -> str:
    """Returns what an error says as one line without colours; with its type, unless it is memfit's own."""
    text = " ".join(COLOURS.sub("", str(error)).split())
    text = text if len(text) <= _LONGEST_TOLD else text[:_LONGEST_TOLD] + "..."
    return text if isinstance(error, MemfitError) else f"{type(error).__name__}: {text}"


class InvalidInput(MemfitError, ValueError):
    """A value memfit cannot work with; nothing has been changed when it is raised."""

    def __init__(self, rule: str, *, received: object = _NOTHING, remedy: str = "") -> None:
        """Tells a rule, the value that broke it and what to do instead, as one message.

        Args:
            rule: What must hold, as a sentence.
            received: The offending value, where there is one.
            remedy: What to write or run instead.
        """
        parts = [rule.rstrip(".") + "."]
        if received is not _NOTHING:
            parts.append(f"Received: {received!r}.")
        if remedy:
            parts.append(remedy.rstrip(".") + ".")
        super().__init__(" ".join(parts))


def check_count(rule: str, value: object, remedy: str = "") -> None:
    """Refuses what is no whole number of at least 1; True is none.

    Raises:
        InvalidInput: Then, with the rule.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(rule, received=value, remedy=remedy)


class CannotTell(InvalidInput):
    """What a training takes cannot be known before it runs; it may well run."""


class StepFailed(MemfitError, RuntimeError):
    """A training step failed on the synthetic data that it was recorded with; on real data it may well run."""


class TooLate(MemfitError, RuntimeError):
    """A setting that TensorFlow accepts only before it starts was made too late."""


class TensorFlowMissing(MemfitError, ImportError):
    """TensorFlow or Keras is not installed, and the call needs it."""

    def __init__(self, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs TensorFlow, which is not installed. "
            "Install it with: pip install 'memfit[cpu]' (or 'memfit[cuda]' for NVIDIA GPUs)."
        )


# What a signal usually means in a training process. SIGKILL cannot be caught, so the kernel's log is the only
# witness; the rest is what was seen: a oneDNN kernel whose allocation fails ends the process with SIGSEGV, a failed
# check in TensorFlow with SIGABRT.
_USUAL_CAUSE = {
    signal.SIGKILL: "usually the kernel's OOM killer: the host or the container ran out of memory",
    signal.SIGSEGV: "in a memory-capped process usually a kernel that does not check its allocations",
    signal.SIGABRT: "usually a failed check inside TensorFlow or CUDA; the lines above it say which",
    signal.SIGBUS: "usually a memory-mapped file that shrank, or /dev/shm that is full",
    signal.SIGTERM: "the process was asked to end",
}


class ProcessDied(MemfitError, RuntimeError):
    """An isolated process ended without giving a result.

    Attributes:
        exit_code: The exit status, negative for a signal as in `subprocess`.
        signal: The signal that ended the process, or None.
    """

    def __init__(self, exit_code: int, what: str = "The isolated process") -> None:
        self.exit_code = exit_code
        self.what = what
        self.signal = signal.Signals(-exit_code) if exit_code < 0 else None
        message = f"{what} ended with exit code {exit_code} before it gave a result."
        if self.signal is not None:
            cause = f" ({_USUAL_CAUSE[self.signal]})" if self.signal in _USUAL_CAUSE else ""
            message = f"{what} was ended by {self.signal.name}{cause}."
        super().__init__(message)

    def __reduce__(self) -> tuple[type["ProcessDied"], tuple[int, str]]:
        return type(self), (self.exit_code, self.what)
