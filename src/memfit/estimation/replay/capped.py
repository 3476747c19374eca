"""What becomes of the recorded steps under a cap, where a thread that finds no room waits for the others."""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from memfit.estimation import margins
from memfit.estimation.replay.allocator import OutOfMemory
from memfit.estimation.replay.events import allocation_of, is_birth
from memfit.estimation.replay.played import Played
from memfit.estimation.replay.replay import Replay, no_collection
from memfit.estimation.replay.script import Script


def completes(played: Played, limit: int) -> bool:
    """Whether some runs of the recorded steps fit under a limit, with the allocator's regions, gaps and waiting.

    TensorFlow's allocator does not fail at once: the thread sleeps until another one frees something. The others
    meanwhile go on with whatever does not need its op's result.
    """
    with no_collection():
        return all(_peak(played, limit, run) is not None for run in played.runs(margins.CAPPED_RUNS))


def peak_under(played: Played, limit: int) -> int | None:
    """The peak in use under a limit, on average; None where a run does not complete.

    Where little is left the allocator hands out chunks that it would have cut elsewhere, and counts them whole.
    """
    peaks = []
    with no_collection():
        for run in played.runs(margins.CAPPED_RUNS):
            peak = _peak(played, limit, run)
            if peak is None:
                return None
            peaks.append(peak)
    return sum(peaks) // len(peaks)


def _peak(played: Played, limit: int, run: tuple[int, ...]) -> int | None:
    try:
        replay = Replay(played, limit)
        replay.allocator.peak = replay.allocator.in_use
        for number in run:
            _Threads(replay, number).run()
            replay.keep(played.step(number).outliving)
    except OutOfMemory:
        return None
    return replay.allocator.peak


class _Threads:
    """A step under a cap: its births and deaths in the recorded order, but for threads that wait.

    A step over time has hundreds of thousands of them and a wait at every hundredth: no wait may cost as much as
    all that is left.

    Args:
        replay: The run up to here.
        number: The recorded step.
    """

    def __init__(self, replay: Replay, number: int) -> None:
        script = replay.played.script
        self._replay = replay
        self._script = script
        self._next, self._end = script.ends[number : number + 2]
        self._done: set[int] = set()  # positions from `_next` on that others have gone on to
        self._waiting: dict[int, Callable[[int], bool]] = {}  # what others may do meanwhile, by position
        self._workers = script.workers[number]
        self._not_blocked: dict[int, _NotBlocked] = {}

    def run(self) -> None:
        """Goes through the step.

        Raises:
            OutOfMemory: If all threads wait.
        """
        while self._next + len(self._done) < self._end:
            if self._waiting:
                self._go_on()
                continue
            try:
                self._replay.serve(self._left())
            except OutOfMemory:
                self._wait(self._next - 1)

    def _left(self) -> Iterator[int]:
        """Yields what is left of the step; what was yielded last is at the position before `_next`."""
        order, done = self._script.order, self._done
        for place in range(self._next, self._end):
            self._next = place + 1
            if place in done:
                done.remove(place)
            else:
                yield order[place]

    def _go_on(self) -> None:
        """Lets the threads that do not wait go on, until one that waits gets its memory.

        A thread that frees something asks for the next op's memory before one that sleeps has woken up.
        """
        order, serve = self._script.order, self._replay.serve
        freed = False
        for place in self._list_others():
            if place in self._done or not all(may(place) for may in self._waiting.values()):
                continue
            if not is_birth(order[place]) and freed and self._wake():
                return
            freed = not is_birth(order[place])
            try:
                serve((order[place],))
            except OutOfMemory:
                if self._wake():
                    return
                self._wait(place)
            self._done.add(place)
        if not self._wake():
            raise OutOfMemory

    def _list_others(self) -> Iterator[int]:
        """Yields the positions that one of the requests that wait lets go on, and some others."""
        waiting = next(iter(self._waiting))
        window = max(self._next, self._script.windows[waiting])
        yield from range(self._next, min(window, self._end))
        blocked = self._script.dependencies.after[self._script.order[waiting]]
        if blocked:
            if blocked not in self._not_blocked:
                self._not_blocked[blocked] = _NotBlocked(self._script, blocked, self._next, self._end)
            yield from self._not_blocked[blocked].list_from(window)

    def _wake(self) -> bool:
        """Serves one of the requests that wait, if there is room for it."""
        for place in self._waiting:
            try:
                self._replay.serve((self._script.order[place],))
            except OutOfMemory:
                continue
            del self._waiting[place]
            return True
        return False

    def _wait(self, place: int) -> None:
        self._waiting[place] = self._meanwhile(place)
        if len(self._waiting) >= self._workers:
            raise OutOfMemory

    def _meanwhile(self, waiting: int) -> Callable[[int], bool]:
        """What others may do while the request at a position waits.

        They did some of it while its op ran, so that cannot depend on its result; what comes after the op in the
        step's graph does.
        """
        script = self._script
        window, thread = script.windows[waiting], script.threads[waiting]
        blocked = script.dependencies.after[script.order[waiting]]

        def may(place: int) -> bool:
            if waiting < place < window and script.threads[place] != thread:
                return True
            return bool(blocked) and _is_free_of(script, place, blocked)

        return may


class _NotBlocked:
    """The positions of a step that do not come after some ops in its graph, looked for only as far as asked.

    Args:
        script: What is replayed.
        blocked: The bits of the ops.
        begin: The first position.
        end: That behind the last one.
    """

    def __init__(self, script: Script, blocked: int, begin: int, end: int) -> None:
        self._script, self._blocked = script, blocked
        self._left = iter(range(begin, end))
        self._found: list[int] = []

    def list_from(self, first: int) -> Iterator[int]:
        """Yields those from a position on."""
        number = bisect_left(self._found, first)
        while number < len(self._found) or self._find():
            if self._found[number] >= first:
                yield self._found[number]
            number += 1

    def _find(self) -> bool:
        for place in self._left:
            if _is_free_of(self._script, place, self._blocked):
                self._found.append(place)
                return True
        return False


def _is_free_of(script: Script, place: int, blocked: int) -> bool:
    """Whether what is at a position waits for none of some ops, and takes nothing from them that they read."""
    known, code = script.dependencies, script.order[place]
    index = allocation_of(code)
    if not known.bits[index] or known.bits[index] & blocked:
        return False
    return is_birth(code) or index in script.temporary or not known.readers[index] & blocked
