"""Which layer an op belongs to, in which pass it runs, and what kind of memory it asks for."""

import re
from collections.abc import Iterable

from memfit.estimation.recording.step import JOINED, READ

KINDS = ("weights", "gradients", "optimizer state", "activations", "inputs", "workspace", "rounding")
_SUFFIX = re.compile(r"_\d+$")
_BACKWARD = "gradient_tape"


class Names:
    """Reads op names, which carry Keras's layer names as TensorFlow's name scopes."""

    def __init__(self, layers: Iterable[str], *optimizers: str) -> None:
        self._layers = frozenset(layers)
        self._optimizers = frozenset(optimizers)

    def layer(self, op: str) -> str:
        """Returns the innermost layer of an op, or "" for the loss, the optimizer and eager ops."""
        for part in reversed(op.split("/")):
            # TensorFlow adds _1 to a scope that was used before: block_2 of one trace is block_2_1 in the next.
            for name in (_SUFFIX.sub("", part), part):
                if name in self._layers:
                    return name
        return ""

    def phase(self, op: str) -> str:
        """Returns "forward", "backward", "update", or "" for what is outside the step's graph."""
        if not op:
            return ""
        parts = op.split("/")
        if _BACKWARD in parts:
            return "backward"
        if any(_SUFFIX.sub("", part) in self._optimizers for part in parts[:2]):
            return "update"
        # Sums of gradients from several places have no scope of their own.
        return "backward" if parts[0].startswith("AddN") else "forward"

    def kind(self, op: str, region: str, *, outlives_step: bool) -> str:
        """Returns the kind of memory, one of KINDS."""
        phase = self.phase(op)
        if outlives_step and phase != "backward":  # gradients that a loop holds until it has the next ones
            return "optimizer state" if phase == "update" else "weights"
        if not phase or has_scope(op, READ):
            return "inputs"
        if has_scope(op, JOINED):
            return "gradients"
        if region == "temp" or phase == "update":
            return "workspace"
        return "gradients" if phase == "backward" else "activations"


def has_scope(op: str, scope: str) -> bool:
    """Whether an op was made in a name scope."""
    return scope in op and any(_SUFFIX.sub("", part) == scope for part in op.split("/"))
