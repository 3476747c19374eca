"""What becomes of the recorded steps under a cap, where a thread that finds no room waits for the others."""

from memfit.estimation.bfc import OutOfMemory
from memfit.estimation.played import Played
from memfit.estimation.replay import Replay

# Each run is replayed for every cap that is tried.
_RUNS = 8


def completes(played: Played, limit: int) -> bool:
    """Whether some runs of the recorded steps fit under a limit, with the allocator's regions, gaps and waiting.

    TensorFlow's allocator does not fail at once: the thread sleeps until another one frees something. What the
    others do meanwhile is what they did while the op ran that wants the memory: that cannot depend on its result.
    """
    return all(_peak(played, limit, run) is not None for run in played.runs(_RUNS))


def peak_under(played: Played, limit: int) -> int | None:
    """The peak in use under a limit, on average; None where a run does not complete.

    Where little is left the allocator hands out chunks that it would have cut elsewhere, and counts them whole.
    """
    found = [_peak(played, limit, run) for run in played.runs(_RUNS)]
    peaks = [peak for peak in found if peak is not None]
    return sum(peaks) // len(peaks) if len(peaks) == len(found) else None


def _peak(played: Played, limit: int, run: tuple[int, ...]) -> int | None:
    try:
        replay = Replay(played, limit)
    except OutOfMemory:
        return None
    replay.allocator.peak = replay.allocator.in_use
    for number in run:
        step = played.step(number)
        codes, positions = step.codes, step.positions
        while positions:
            try:
                replay.serve(codes)
                break
            except OutOfMemory as stop:
                position, *positions = positions[stop.args[0] :]
            done = _after_waiting(replay, position, positions)
            if done is None:
                return None
            positions = [other for other in positions if other not in done]
            codes = [played.script.order[position] for position in positions]
        replay.keep(step.outliving)
    return replay.allocator.peak


def _after_waiting(replay: Replay, position: int, following: list[int]) -> set[int] | None:
    """Lets the other threads go on until the request at `position` can be served.

    Returns:
        What they did meanwhile; None if it can never be served.
    """
    script = replay.played.script
    order, threads = script.order, script.threads
    done: set[int] = set()
    for other in following:
        if other >= script.windows[position]:
            return None
        if threads[other] == threads[position]:
            continue
        code = order[other]
        try:
            replay.serve((code,))
            done.add(other)
            if code < 0:
                replay.serve((order[position],))
                return done
        except OutOfMemory:
            if code >= 0:
                return None
    return None
