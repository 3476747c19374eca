"""`NotCompiled`: why the GPU compiler has no answer."""

from memfit.errors import MemfitError


class NotCompiled(MemfitError, RuntimeError):
    """A step could not be compiled for a GPU; the message is a clause that says why."""


class Refused(NotCompiled):
    """The compiler itself said no, to the step or to the GPU."""
