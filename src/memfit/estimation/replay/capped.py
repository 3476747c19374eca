"""What becomes of the recorded steps under a cap, where a thread that finds no room waits for the others."""

from collections.abc import Callable

from memfit.estimation import margins
from memfit.estimation.replay.allocator import OutOfMemory
from memfit.estimation.replay.events import allocation_of, is_birth
from memfit.estimation.replay.played import Played, PlayedStep
from memfit.estimation.replay.replay import Replay


def completes(played: Played, limit: int) -> bool:
    """Whether some runs of the recorded steps fit under a limit, with the allocator's regions, gaps and waiting.

    TensorFlow's allocator does not fail at once: the thread sleeps until another one frees something. The others
    meanwhile go on with whatever does not need its op's result.
    """
    return all(_peak(played, limit, run) is not None for run in played.runs(margins.CAPPED_RUNS))


def peak_under(played: Played, limit: int) -> int | None:
    """The peak in use under a limit, on average; None where a run does not complete.

    Where little is left the allocator hands out chunks that it would have cut elsewhere, and counts them whole.
    """
    peaks = []
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
            step = played.step(number)
            _Threads(replay, step).run()
            replay.keep(step.outliving)
    except OutOfMemory:
        return None
    return replay.allocator.peak


class _Threads:
    """A step under a cap: its births and deaths in the recorded order, but for threads that wait.

    Args:
        replay: The run up to here.
    """

    def __init__(self, replay: Replay, step: PlayedStep) -> None:
        script = replay.played.script
        self._replay = replay
        self._script = script
        self._left = step.positions
        self._waiting: dict[int, Callable[[int], bool]] = {}  # what others may do meanwhile, by position
        self._workers = len({script.threads[place] for place in step.positions if script.is_output(place)})

    def run(self) -> None:
        """Goes through the step.

        Raises:
            OutOfMemory: If all threads wait.
        """
        order = self._script.order
        while self._left:
            if self._waiting:
                self._go_on()
                continue
            try:
                self._replay.serve([order[place] for place in self._left])
                return
            except OutOfMemory as stop:
                place, *self._left = self._left[stop.args[0] :]
                self._wait(place)

    def _go_on(self) -> None:
        """Lets the threads that do not wait go on, until one that waits gets its memory.

        A thread that frees something asks for the next op's memory before one that sleeps has woken up.
        """
        order, serve = self._script.order, self._replay.serve
        done: set[int] = set()
        freed = False
        try:
            for place in self._left:
                if not all(may(place) for may in self._waiting.values()):
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
                done.add(place)
            if not self._wake():
                raise OutOfMemory
        finally:
            self._left = [place for place in self._left if place not in done]

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
        step's graph does. What that has yet to read stays.
        """
        script, known = self._script, self._script.dependencies
        window, thread = script.windows[waiting], script.threads[waiting]
        blocked = known.after[script.order[waiting]]

        def may(place: int) -> bool:
            if waiting < place < window and script.threads[place] != thread:
                return True
            code = script.order[place]
            index = allocation_of(code)
            if not blocked or not known.bits[index] or known.bits[index] & blocked:
                return False
            return is_birth(code) or index in script.temporary or not known.readers[index] & blocked

        return may
