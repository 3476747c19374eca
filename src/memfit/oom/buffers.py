"""What XLA's report on its buffers says that a compiled step holds."""

import re

from memfit.oom.allocator import read_size
from memfit.sizes import Size

_KINDS = {
    "parameter": "arguments (weights, optimizer state, inputs)",
    "constant": "constants",
    "maybe_live_out": "results",
    "preallocated temp": "temporary buffers (activations)",
}
_ALLOCATION = re.compile(
    r"(parameter|constant|maybe_live_out|preallocated temp) allocation:\s+([\d.]+)([KMGT]?)(?:i?B)"
)


def read_buffers(text: str) -> list[tuple[str, Size]]:
    """Returns what a compiled program holds by kind, largest first; empty where the text has no such report."""
    last = {kind: read_size(number, unit) for kind, number, unit in _ALLOCATION.findall(text)}
    held = [(_KINDS[kind], size) for kind, size in last.items() if size]
    return sorted(held, key=lambda item: -item[1])
