"""A model of TensorFlow's BFC allocator: where a request lands, how much it occupies, when memory runs out.

It follows `xla/tsl/framework/bfc_allocator.cc` as TensorFlow 2.21 has it, for the CPU arena and for a GPU with
memory growth: requests rounded to 256 bytes, best fit by size and then by address, a free chunk split only where
it is at least twice the request or 128 MiB larger, neighbours merged when freed, and regions that double.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memfit.estimation.replay.events import death_of

_ROUNDING = 256
_FIRST_REGION = 2 * 2**20
# A free chunk that is less than twice the request is handed out whole, unless this much would be wasted.
_LARGEST_WASTE = 128 * 2**20

# A chunk is a list, because a replay makes hundreds of thousands: size, address, chunk before, chunk after, whether
# it is free, the number of the allocation it was last handed out for, and its key in the list of free chunks.
SIZE, ADDRESS, BEFORE, _AFTER, FREE, OWNER, _KEY = range(7)
Chunk = list[Any]
# Free chunks are sorted by size, then by address, and one number that holds both is compared in no time.
_ADDRESS_BITS = 48


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
        self._region = min(round_up(limit), _FIRST_REGION)
        # The bins of the original only speed up the same search.
        self._free: list[int] = []
        self._at: dict[int, Chunk] = {}
        self._next_address = 2 ** (_ADDRESS_BITS - 1)

    def allocate(self, requested: int) -> Chunk:
        """Hands out a chunk for `requested` bytes.

        Raises:
            OutOfMemory: If no free chunk is large enough and the limit allows no region that would be.
        """
        held: list[Chunk | None] = [None]
        self.serve((0,), (round_up(requested),), held, {})
        (chunk,) = held
        assert chunk is not None
        return chunk

    def release(self, chunk: Chunk) -> None:
        """Takes a chunk back and merges it with free neighbours."""
        self.serve((death_of(0),), (0,), [chunk], {})

    def serve(
        self,
        codes: Iterable[int],
        sizes: Sequence[int],
        held: list[Chunk | None],
        kept: Mapping[int, dict[int, Chunk]],
        holds: Sequence[int] = (),
    ) -> tuple[int, int]:
        """Serves births and deaths (`events.py`) in a row, all in one loop because there are ten thousands.

        Args:
            codes: Births and deaths.
            sizes: Bytes that allocation n asks for, as `round_up` gives them.
            held: The chunk of allocation n, or None; changed.
            kept: Chunks from before, by the bytes asked for and by whose value they hold; one of them is taken back
                where an allocation dies that is not held. Changed.
            holds: Whose value allocation n holds.

        Returns:
            The largest `in_use` on the way, and how many codes came before it.

        Raises:
            OutOfMemory: As `allocate`; its argument says how many codes were served.
        """
        free, at = self._free, self._at
        in_use = highest = self.in_use
        where = 0
        for position, code in enumerate(codes):
            if code >= 0:
                size = sizes[code]
                place = bisect_left(free, size << _ADDRESS_BITS)
                if place == len(free):
                    self.in_use = in_use
                    if not self._extend(size):
                        raise OutOfMemory(position)
                    place = bisect_left(free, size << _ADDRESS_BITS)
                chunk = at.pop(free.pop(place))
                chunk_size = chunk[SIZE]
                if chunk_size >= 2 * size or chunk_size - size >= _LARGEST_WASTE:
                    after = chunk[_AFTER]
                    address, left = chunk[ADDRESS] + size, chunk_size - size
                    key = left << _ADDRESS_BITS | address
                    at[key] = rest = [left, address, chunk, after, True, None, key]
                    if after is not None:
                        after[BEFORE] = rest
                    chunk[_AFTER] = rest
                    chunk[SIZE] = chunk_size = size
                    insort(free, key)
                chunk[FREE] = False
                chunk[OWNER] = code
                held[code] = chunk
                in_use += chunk_size
                if in_use > highest:
                    highest, where = in_use, position
                continue
            code = ~code  # whose death it is
            taken = held[code]
            if taken is None:
                others = kept.get(sizes[code])
                if not others:
                    continue
                taken = others.pop(holds[code], None) or others.popitem()[1]
            held[code] = None
            in_use -= taken[SIZE]
            self._merge(taken)
        self.in_use = in_use
        self.peak = max(self.peak, highest)
        return highest, where

    def _merge(self, chunk: Chunk) -> None:
        """Makes a chunk free, together with its free neighbours."""
        free, at = self._free, self._at
        after = chunk[_AFTER]
        if after is not None and after[FREE]:
            key = after[_KEY]
            del free[bisect_left(free, key)], at[key]
            chunk[SIZE] += after[SIZE]
            chunk[_AFTER] = after = after[_AFTER]
            if after is not None:
                after[BEFORE] = chunk
        before = chunk[BEFORE]
        if before is not None and before[FREE]:
            key = before[_KEY]
            del free[bisect_left(free, key)], at[key]
            before[SIZE] += chunk[SIZE]
            before[_AFTER] = after = chunk[_AFTER]
            if after is not None:
                after[BEFORE] = before
            chunk = before
        chunk[FREE] = True
        chunk[_KEY] = key = chunk[SIZE] << _ADDRESS_BITS | chunk[ADDRESS]
        at[key] = chunk
        insort(free, key)

    def _extend(self, size: int) -> bool:
        available = (self.limit - self.reserved) // _ROUNDING * _ROUNDING
        if size > available:
            return False
        grown = False
        while size > self._region:
            self._region *= 2
            grown = True
        region = min(self._region, available)
        if not grown:
            self._region *= 2
        # Linux maps new regions below the older ones; a gap keeps neighbours from merging across regions.
        self._next_address -= region + _ROUNDING
        key = region << _ADDRESS_BITS | self._next_address
        self._at[key] = [region, self._next_address, None, None, True, None, key]
        insort(self._free, key)
        self.reserved += region
        return True


def round_up(size: Any) -> Any:
    """Returns what the allocator makes of a request, or of a NumPy array of them; not less than 256 bytes."""
    return -(-(size + (size == 0)) // _ROUNDING) * _ROUNDING
