"""The search: the most faithful recipe that fits, and of those the fastest, without trial runs.

What a recipe saves is first taken from its levers' predictions, which know the ops but not the allocator; the
recipe chosen is then recorded, and the search goes on with what that showed. A less faithful recipe is chosen only
after the tightest more faithful one has been recorded, or is predicted to be far beyond the memory.
"""

from collections.abc import Callable

from memfit.errors import ProcessDied
from memfit.planning.candidates import Candidate, choose_best
from memfit.planning.fidelity import Fidelity
from memfit.planning.recordings import Recordings
from memfit.steps.recipe import Recipe

# How many recipes are recorded at one fidelity before only the recorded ones are left to choose from.
_RECORDINGS = 3
# More than an unrecorded recipe was ever predicted too high, as a multiple of what its recording showed (1.65 for a
# MobileNetV2); one that is predicted beyond the memory by more than this is not worth a recording.
_WORST_PREDICTION = 2.0
# How much larger a batch, or faster a step, has to promise to be for one more recording: predictions are no finer.
_WORTH_RECORDING = 1.05
# The largest batch that is looked for: with micro-batches, and inputs on the host, nothing else may bound it.
LARGEST = 2**14


def try_unchanged(recordings: Recordings, batch_size: int) -> Candidate | None:
    """Tells whether a batch fits with nothing changed; where stock's step would, the one that runs is recorded."""
    unchanged = recordings.candidate(Recipe(), batch_size)
    if unchanged.need <= recordings.job.memory and not unchanged.recorded:
        recordings.record(Recipe(), batch_size)
        unchanged = recordings.candidate(Recipe(), batch_size)
    return choose_best([unchanged], recordings.job.memory)


def search_recipe(recordings: Recordings, batch_size: int) -> Candidate | None:
    """Searches the most faithful recipe with which a batch fits; None where no allowed one does."""
    for fidelity in Fidelity:
        if fidelity > recordings.job.allow:
            return None
        chosen = _search_at(recordings, batch_size, fidelity)
        if chosen is not None:
            return chosen
    return None


def record_tightest(recordings: Recordings, batch_size: int) -> None:
    """Records the allowed recipe that is predicted to take least: nothing is refused on a prediction alone."""
    failed = True
    while failed:
        tightest = _find_tightest(recordings.candidates(batch_size)).recipe
        recordings.record(tightest, batch_size)
        failed = recordings.failure(tightest) is not None


def search_beyond(recordings: Recordings, batch_size: int, memory: int) -> Candidate | None:
    """Searches a recipe that goes farther than is allowed and fits; one that may is recorded before it is named."""
    allow = recordings.job.allow

    def list_farther() -> list[Candidate]:
        return [c for c in recordings.candidates(batch_size, Fidelity.MODEL) if c.fidelity > allow]

    farther = list_farther()
    best = choose_best(farther, memory) or _choose_tightest(farther, memory)
    if best is None:
        return None
    try:
        recordings.record(best.recipe, batch_size)
    except ProcessDied:  # what fails is not advised
        return None
    return choose_best([c for c in list_farther() if c.bounded], memory)


def search_largest_batch(recordings: Recordings) -> tuple[int, Candidate | None]:
    """Searches the largest batch for which an allowed recipe fits, and the most faithful recipe for it."""
    recorded = 0
    for _ in range(_RECORDINGS):
        batch_size, chosen = _choose_largest(recordings)
        if chosen is None or chosen.recorded or batch_size < _WORTH_RECORDING * recorded:
            break
        recordings.record(chosen.recipe, batch_size)
        recorded, _ = _choose_largest(recordings, recorded_only=True)
    batch_size, chosen = _choose_largest(recordings, recorded_only=True)
    tightest = _choose_tightest(recordings.candidates(batch_size or 1), recordings.job.memory)
    if tightest is not None and (chosen is None or chosen.recipe.micro_batch is None):
        recordings.record(tightest.recipe, batch_size or 1)
        batch_size, chosen = _choose_largest(recordings, recorded_only=True)
    seen: set[tuple[object, int]] = set()
    while chosen is not None and (chosen.recipe, batch_size) not in seen:
        # Sizes between those replayed were taken from a line; the one chosen is replayed itself.
        seen.add((chosen.recipe, batch_size))
        recordings.record(chosen.recipe, batch_size)
        recordings.look_at(chosen.recipe, batch_size)
        batch_size, chosen = _choose_largest(recordings, recorded_only=True, at_most=batch_size)
    return batch_size, chosen


def list_recorded(recordings: Recordings, batch_size: int) -> list[Candidate]:
    """Lists the allowed candidates for a batch that a recording stands behind, of that batch or of a larger one."""
    return [candidate for candidate in recordings.candidates(batch_size) if candidate.bounded]


def _search_at(recordings: Recordings, batch_size: int, fidelity: Fidelity) -> Candidate | None:
    """Searches among the recipes of just one fidelity."""
    looked_at: set[object] = set()
    recorded = 0
    memory = recordings.job.memory
    while True:
        candidates = [c for c in recordings.candidates(batch_size, fidelity) if c.fidelity == fidelity]
        known = choose_best([c for c in candidates if c.recorded], memory)
        best = choose_best(candidates, memory) if recorded < _RECORDINGS else known
        if best is not None and known is not None and _is_as_good(known, best):
            best = known
        if best is None:
            best = _choose_tightest(candidates, memory)
            if best is None:
                return None
        if not best.recorded:
            recordings.record(best.recipe, batch_size)
            recorded += 1
        elif best.recipe in looked_at:
            return best
        else:
            looked_at.add(best.recipe)
            recordings.look_at(best.recipe, batch_size)


def _is_as_good(known: Candidate, best: Candidate) -> bool:
    """Whether a candidate that was recorded is about as fast as one that was not, and changes no more."""
    return known.levers <= best.levers and known.time <= _WORTH_RECORDING * best.time


def _choose_tightest(candidates: list[Candidate], memory: int) -> Candidate | None:
    """Chooses the candidate that is predicted to take least, if it was not recorded and may fit."""
    if not candidates:
        return None
    tightest = _find_tightest(candidates)
    worth = tightest.need <= _WORST_PREDICTION * memory
    return tightest if worth and not tightest.recorded else None


def _find_tightest(candidates: list[Candidate]) -> Candidate:
    """Finds the candidate that is predicted to take least.

    Of those that take the same, the last: large convolutions in parts save what only a compiler can tell.
    """
    return min(reversed(candidates), key=lambda candidate: candidate.need)


def find_largest_batch(fits: Callable[[int], bool], at_most: int = LARGEST) -> int:
    """Finds the largest batch for which something holds, to within 2%, as predictions are no finer.

    Args:
        fits: Whether it holds for a batch; where it does, it does for smaller ones.
        at_most: Where to end.

    Returns:
        The batch, or 0 where it does not even hold for 1.
    """
    if fits(at_most):
        return at_most
    if at_most == 1 or not fits(1):
        return 0
    low, high = 1, 2
    while high < at_most and fits(high):
        low, high = high, 2 * high
    high = min(high, at_most)
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _choose_largest(
    recordings: Recordings, *, recorded_only: bool = False, at_most: int = LARGEST
) -> tuple[int, Candidate | None]:
    """Chooses the largest batch and the best candidate for it, as far as is known by now."""

    def choose(batch_size: int) -> Candidate | None:
        if recorded_only:
            return choose_best(list_recorded(recordings, batch_size), recordings.job.memory)
        return choose_best(recordings.candidates(batch_size), recordings.job.memory)

    batch_size = find_largest_batch(lambda size: choose(size) is not None, at_most)
    return batch_size, choose(batch_size) if batch_size else None
