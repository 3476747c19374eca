"""What TensorFlow's allocators write into the log when an allocation fails."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from memfit.sizes import Size

# TensorFlow writes 1024-based sizes as "1.43GiB", "1020.85M", "0B" or plain bytes.
_SIZE = r"([\d.]+) ?([KMGT]?)(?:i?B)?"
_SCALE = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_FAILED = re.compile(
    rf"Allocator \((?P<name>[^)]+)\) ran out of memory trying to allocate {_SIZE}"
    r"(?: \(rounded to (?P<exact>\d+)\))?\s*(?:requested by op (?P<op>\S*))?"
)
_FAILED_ASYNC = re.compile(r"(?P<name>gpu_async_\d+) cuMemAllocAsync failed to allocate (?P<exact>\d+) bytes")
_NO_FAILURE = "caller indicates that this is not a failure"
_FREE = re.compile(r"\bFree\s+at \S+(?: next \d+)? of size (\d+)")
_CHUNKS = re.compile(r"\b(\d+) Chunks of size (\d+) totalling")
_BIN = re.compile(rf"\. {_SIZE} in use in bin\. {_SIZE} client-requested in use in bin")
_HISTOGRAM = re.compile(r"cudamallocasync_allocator\.cc:\d+\] (\d+), (\d+)\s*$")
_CUDA_FREE = re.compile(r"Free memory/Total memory: (\d+)/(\d+)")
_AVAILABLE = re.compile(rf"memory_limit_: {_SIZE} available (?:size|bytes): {_SIZE}")
_STAT = re.compile(rf"^(?:.*Stats:)?\s*(Limit|InUse):\s+{_SIZE}\s*$")
# XLA's report on the buffers of a compiled step.
_BUFFER_KINDS = {
    "parameter": "arguments (weights, optimizer state, inputs)",
    "constant": "constants",
    "maybe_live_out": "results",
    "preallocated temp": "temporary buffers (activations)",
}
_BUFFERS = re.compile(rf"({'|'.join(_BUFFER_KINDS)}) allocation:\s+([\d.]+)([KMGT]?)(?:i?B)")


class Chunks(NamedTuple):
    """Pieces of memory of one size that were in use."""

    pieces: int
    size: Size

    @property
    def total(self) -> Size:
        """All of them together."""
        return Size(self.pieces * self.size)


@dataclass
class Failure:
    """One allocation that failed, as the allocator reported it; None where the text does not say.

    Attributes:
        line: Where in the text it begins.
        allocator: TensorFlow's name of the allocator, such as "GPU_0_bfc".
        requested: Bytes asked for.
        op: Name of the op that asked, or empty.
        limit: Bytes the allocator may take.
        in_use: Bytes in use.
        largest_free: The largest piece that could have been handed out.
        wasted: Bytes in use beyond what was requested: chunks are larger than the tensors in them.
        chunks: What was in use, by size.
    """

    line: int
    allocator: str
    requested: Size
    op: str = ""
    limit: Size | None = None
    in_use: Size | None = None
    largest_free: Size | None = None
    wasted: Size | None = None
    chunks: list[Chunks] = field(default_factory=list)

    @property
    def free(self) -> Size | None:
        """Bytes below the limit that were not in use."""
        if self.limit is None or self.in_use is None:
            return None
        return Size(max(self.limit - self.in_use, 0))


def read_size(number: str, unit: str = "") -> Size:
    """Returns a size as TensorFlow prints it.

    Example:
        >>> read_size("1.5", "G")
        Size('1.50 GiB')
    """
    return Size(int(float(number) * _SCALE[unit]))


def read_failures(lines: Iterable[str]) -> list[Failure]:
    """Returns the failed allocations of a log in order, without those that TensorFlow calls no failure."""
    failures: list[Failure] = []
    for index, line in enumerate(lines):
        match = _FAILED.search(line)
        if match is not None and _NO_FAILURE not in line:
            size = Size(int(match["exact"])) if match["exact"] else read_size(match[2], match[3])
            failures.append(Failure(index, match["name"], size, match["op"] or ""))
        elif match := _FAILED_ASYNC.search(line):
            failures.append(Failure(index, match["name"], Size(int(match["exact"]))))
        elif failures:
            _add(failures[-1], line)
    return failures


def _add(failure: Failure, line: str) -> None:
    """Takes what one further line says about a failure."""
    free: Size | None = None
    if match := _CHUNKS.search(line):
        failure.chunks.append(Chunks(int(match[1]), Size(int(match[2]))))
    elif match := _FREE.search(line):
        free = Size(int(match[1]))
    elif match := _BIN.search(line):
        lost = read_size(match[1], match[2]) - read_size(match[3], match[4])
        failure.wasted = Size((failure.wasted or 0) + max(lost, 0))
    elif match := _AVAILABLE.search(line):
        failure.limit, free = read_size(match[1], match[2]), read_size(match[3], match[4])
    elif match := _STAT.match(line):
        size = read_size(match[2], match[3])
        if match[1] == "Limit":
            failure.limit = failure.limit or size or None  # the asynchronous allocator writes 0 for "none"
        else:
            failure.in_use = failure.in_use or size
    elif match := _CUDA_FREE.search(line):
        # The device's own figures, which count other processes as well.
        free, failure.limit = Size(int(match[1])), Size(int(match[2]))
        failure.in_use = Size(failure.limit - free)
    elif match := _HISTOGRAM.search(line):
        failure.chunks.append(Chunks(int(match[2]), Size(int(match[1]))))
    if free is not None:
        failure.largest_free = max(failure.largest_free or Size(0), free)


def read_buffers(text: str) -> list[tuple[str, Size]]:
    """Returns what a program compiled by XLA holds by kind, largest first; empty where the text does not say."""
    last = {kind: read_size(number, unit) for kind, number, unit in _BUFFERS.findall(text)}
    held = [(_BUFFER_KINDS[kind], size) for kind, size in last.items() if size]
    return sorted(held, key=lambda item: -item[1])
