"""Whether the recorded steps complete under a cap, where a thread that finds no room waits for the others."""

from memfit.estimation.bfc import BFC, Chunk, OutOfMemory
from memfit.estimation.replay import Script, prepared


def completes(script: Script, batch: int, limit: int) -> bool:
    """Whether every replayed step fits under a limit, with the allocator's regions, gaps and waiting.

    TensorFlow's allocator does not fail at once: the thread sleeps until another one frees something. What the
    others do meanwhile is what they did while the op ran that wants the memory: that cannot depend on its result.
    """
    sizes = script.sizes(batch)
    try:
        allocator, chunks = prepared(script, sizes, limit)
    except OutOfMemory:
        return False
    order = script.order
    windows = _windows(script)
    done: set[int] = set()
    for position in range(script.ends[0], len(order)):
        if position in done:
            continue
        code = order[position]
        if code < 0:
            allocator.release(chunks.pop(-1 - code))
            continue
        try:
            chunks[code] = allocator.allocate(sizes[code])
        except OutOfMemory:
            if not _after_waiting(script, sizes, allocator, chunks, done, position, windows[position]):
                return False
    return True


def _after_waiting(
    script: Script,
    sizes: list[int],
    allocator: BFC,
    chunks: dict[int, Chunk],
    done: set[int],
    position: int,
    end: int,
) -> bool:
    """Lets the other threads go on until the request at `position` can be served; False if it never can."""
    order, threads = script.order, script.threads
    for other in range(position + 1, end):
        if threads[other] == threads[position] or other in done:
            continue
        code = order[other]
        if code >= 0:
            try:
                chunks[code] = allocator.allocate(sizes[code])
            except OutOfMemory:
                return False
            done.add(other)
        elif -1 - code in chunks:
            allocator.release(chunks.pop(-1 - code))
            done.add(other)
            try:
                chunks[order[position]] = allocator.allocate(sizes[order[position]])
            except OutOfMemory:
                continue
            return True
    return False


def _windows(script: Script) -> list[int]:
    """For every allocation the position at which its op is over: where its thread frees, or asks for another op."""
    order, threads = script.order, script.threads
    windows = [0] * len(order)
    after: dict[int, int] = {}  # the next position of each thread
    for position in range(len(order) - 1, -1, -1):
        code, thread = order[position], threads[position]
        if code >= 0:
            following = after.get(thread, len(order))
            same = (
                following < len(order)
                and order[following] >= 0
                and script.allocations[order[following]].op == script.allocations[code].op
            )
            windows[position] = windows[following] if same else following
        after[thread] = position
    return windows
