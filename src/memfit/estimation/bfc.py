"""A model of TensorFlow's BFC allocator: where a request lands, how much it occupies, when memory runs out.

It follows `xla/tsl/framework/bfc_allocator.cc` as TensorFlow 2.21 has it, for the CPU arena and for a GPU with
memory growth: requests rounded to 256 bytes, best fit by size and then by address, a free chunk split only where
it is at least twice the request or 128 MiB larger, neighbours merged when freed, and regions that double.
"""

from bisect import bisect_left, insort
from typing import Any

_ROUNDING = 256
_FIRST_REGION = 2 * 2**20
# A free chunk that is less than twice the request is handed out whole, unless this much would be wasted.
_LARGEST_WASTE = 128 * 2**20
_LOWEST = -(2**62)

# A chunk is a list, because a replay makes hundreds of thousands: size, address, chunk before, chunk after, free.
_SIZE, _ADDRESS, _BEFORE, _AFTER, _FREE = range(5)
Chunk = list[Any]


class OutOfMemory(Exception):
    """A request that the modelled allocator cannot serve under its limit."""


class BFC:
    """TensorFlow's best-fit-with-coalescing allocator, without the memory.

    Attributes:
        in_use: Bytes of all chunks handed out, what TensorFlow reports as in use.
        peak: The largest `in_use` so far.
        reserved: Bytes of all regions taken from the device.

    Example:
        >>> allocator = BFC()
        >>> chunk = allocator.allocate(1000)
        >>> allocator.in_use
        1024
    """

    def __init__(self, limit: int = 2**62) -> None:
        self.limit = limit
        self.in_use = 0
        self.peak = 0
        self.reserved = 0
        self._region = min(_rounded(limit), _FIRST_REGION)
        # Sorted by size, then by address: the bins of the original only speed up the same search.
        self._free: list[tuple[int, int]] = []
        self._at: dict[int, Chunk] = {}
        self._next_address = 0

    def allocate(self, requested: int) -> Chunk:
        """Hands out a chunk for `requested` bytes.

        Raises:
            OutOfMemory: If no free chunk is large enough and the limit allows no region that would be.
        """
        size = -(-requested // _ROUNDING) * _ROUNDING or _ROUNDING
        free = self._free
        position = bisect_left(free, (size, _LOWEST))
        if position == len(free):
            self._extend(size)
            position = bisect_left(free, (size, _LOWEST))
        found, address = free.pop(position)
        chunk = self._at[address]
        if found >= 2 * size or found - size >= _LARGEST_WASTE:
            rest: Chunk = [found - size, address + size, chunk, chunk[_AFTER], True]
            if rest[_AFTER] is not None:
                rest[_AFTER][_BEFORE] = rest
            chunk[_AFTER] = rest
            chunk[_SIZE] = found = size
            self._at[rest[_ADDRESS]] = rest
            insort(free, (rest[_SIZE], rest[_ADDRESS]))
        chunk[_FREE] = False
        self.in_use += found
        if self.in_use > self.peak:
            self.peak = self.in_use
        return chunk

    def release(self, chunk: Chunk) -> None:
        """Takes a chunk back and merges it with free neighbours."""
        self.in_use -= chunk[_SIZE]
        after = chunk[_AFTER]
        if after is not None and after[_FREE]:
            self._unlist(after)
            self._swallow(chunk, after)
        before = chunk[_BEFORE]
        if before is not None and before[_FREE]:
            self._unlist(before)
            self._swallow(before, chunk)
            chunk = before
        chunk[_FREE] = True
        insort(self._free, (chunk[_SIZE], chunk[_ADDRESS]))

    def _unlist(self, chunk: Chunk) -> None:
        del self._free[bisect_left(self._free, (chunk[_SIZE], chunk[_ADDRESS]))]

    def _swallow(self, chunk: Chunk, after: Chunk) -> None:
        chunk[_SIZE] += after[_SIZE]
        chunk[_AFTER] = after[_AFTER]
        if after[_AFTER] is not None:
            after[_AFTER][_BEFORE] = chunk
        del self._at[after[_ADDRESS]]

    def _extend(self, size: int) -> None:
        available = (self.limit - self.reserved) // _ROUNDING * _ROUNDING
        if size > available:
            raise OutOfMemory
        grown = False
        while size > self._region:
            self._region *= 2
            grown = True
        region = min(self._region, available)
        if not grown:
            self._region *= 2
        # Linux maps new regions below the older ones; a gap keeps neighbours from merging across regions.
        self._next_address -= region + _ROUNDING
        self._at[self._next_address] = [region, self._next_address, None, None, True]
        insort(self._free, (region, self._next_address))
        self.reserved += region


def _rounded(size: int) -> int:
    return -(-size // _ROUNDING) * _ROUNDING
