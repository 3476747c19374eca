"""How many bytes an allocation asks for at another batch size, learnt from two or three small ones."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from memfit.estimation.recording.recording import Compiled, Step
from memfit.estimation.recording.trace import Event

# Who asks: the op, what for, the tensor's rank and last dimension, and its occurrence index within a step. The same
# asker asks again at every batch size. What is outside of the graph, as the batch itself, has neither op nor shape:
# it is known by its bytes per sample.
Asker = tuple[str, str, str, int]
# Bytes as a polynomial in the batch: constant, per sample, per pair of samples (a similarity matrix has these).
Bytes = tuple[float, float, float]


def askers(step: Iterable[Event], batch: int) -> Iterator[tuple[Event, Asker]]:
    """Yields every allocation of a step of a batch size with who asks for it."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for event in step:
        if not event.freed:
            rank = event.shape.count(",")
            form = f"{rank}:{event.shape.rpartition(',')[2]}" if rank else ""
            if not event.op:
                samples = 1 if event.requested % batch else batch
                form = f"{form} {event.requested // samples}"
            who = (event.op, event.region, form)
            yield event, (*who, seen[who])
            seen[who] += 1


def sizes_by_asker(steps: Iterable[Step | Compiled], fixed: frozenset[str]) -> dict[Asker, Bytes]:
    """Returns the bytes of every asker as a function of the batch; tensors of a `fixed` shape are weights' own."""
    seen: dict[Asker, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    shapes: dict[Asker, str] = {}
    for step in steps:
        for event, asker in askers(step.events, step.batch):
            seen[asker][step.batch][event.requested] += 1
            shapes[asker] = event.shape
    sizes: dict[Asker, Bytes] = {}
    for asker, counts in seen.items():
        points = sorted((batch, seen_bytes.most_common(1)[0][0]) for batch, seen_bytes in counts.items())
        polynomial = _polynomial(points) if len(points) > 1 else None
        sizes[asker] = polynomial or _from_shape(*points[-1], shapes[asker], fixed)
    return sizes


def size_of(
    event: Event, asker: Asker, batch: int, sizes: dict[Asker, Bytes], fixed: frozenset[str]
) -> Bytes:
    """Returns the bytes of one recorded event: its asker's, unless it is not what that asks for in other steps.

    XLA's first step copies the optimizer's slots, which share a buffer, between the buffers it always asks for.
    """
    constant, per_sample, per_pair = sizes[asker]
    if abs(constant + batch * (per_sample + batch * per_pair) - event.requested) < 1:
        return sizes[asker]
    return _from_shape(batch, event.requested, event.shape, fixed)


def _polynomial(points: list[tuple[int, int]]) -> Bytes | None:
    """The line or the parabola through the points; None where they lie on neither."""
    (first, low), (second, middle) = points[-2:]
    slope = (middle - low) / (second - first)
    line = (low - slope * first, slope, 0.0)
    if len(points) == 2:
        return line
    smallest, least = points[-3]
    bend = (slope - (low - least) / (first - smallest)) / (second - smallest)
    # Only a bend upwards is a square. A bend downwards is a buffer that has reached its full size, and a
    # bend of less than a byte per sample is rounding.
    if bend * second < 1:
        return line
    per_sample = slope - bend * (first + second)
    constant = middle - per_sample * second - bend * second**2
    # Tensors have no negative parts: points that ask for one belong to different tensors of the same op.
    return (constant, per_sample, bend) if per_sample > -1 and constant > -1 else None


def _from_shape(batch: int, size: int, shape: str, fixed: frozenset[str]) -> Bytes:
    """What an asker seen at one batch only says of itself: its shape begins with the batch, or it does not."""
    begin = re.match(r"\[(\d+)", shape)
    if begin is not None and shape not in fixed and batch > 1 and int(begin[1]) % batch == 0:
        return (0.0, size / batch, 0.0)
    return (float(size), 0.0, 0.0)
