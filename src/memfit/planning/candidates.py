"""The plans that could be made for a job, each with its predicted peak and time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from memfit.planning.fidelity import Fidelity
from memfit.planning.levers import host_inputs, mixed_precision
from memfit.steps.rematerialisation import Segments

# Predicted times that are closer than this part of a stock step cannot be told apart.
_SAME_TIME = 0.02


@dataclass(frozen=True)
class Way:
    """A way to compute a step, at any batch size.

    Attributes:
        segments: What is kept for the backward pass; None for everything.
        in_parts: Whether the samples pass in micro-batches, and gradients are added up.
    """

    segments: Segments | None = None
    in_parts: bool = False


@dataclass(frozen=True)
class Figures:
    """What is known about a job's step, in bytes.

    Attributes:
        need: What a step takes, with its margin: by the way it is computed and the samples that pass at once.
        activations: What of the stock step's peak are activations, by batch size.
        inputs: One sample of the inputs, targets and weights.
        waiting: What the input pipeline holds on the device beside the step, by batch size.
        fixed_time: The part of a step's time that does not depend on the batch, as a fraction of the stock step, by
            batch size: what every further micro-batch costs.
        recomputed: The extra time of a choice of segments, as a part of a stock step.
        host_inputs: Whether samples can be taken from the host as a step needs them.
    """

    need: Callable[[Way, int], int]
    activations: Callable[[int], int]
    inputs: int
    waiting: Callable[[int], int]
    fixed_time: Callable[[int], float]
    recomputed: Callable[[Segments], float] = attrgetter("recomputed")
    host_inputs: bool = False


@dataclass(frozen=True)
class Candidate:
    """One combination of settings.

    Attributes:
        fidelity: The farthest that any of them goes.
        peak: Predicted bytes, with margin.
        time: Predicted time of a step as a multiple of stock's.
        micro_batch: As in `Plan`.
        segments: As in `Plan`.
        precision: As in `Plan`.
        inputs_on_host: As in `Plan`.
    """

    fidelity: Fidelity
    peak: int
    time: float
    micro_batch: int | None = None
    segments: Segments | None = None
    precision: str | None = None
    inputs_on_host: bool = False

    @property
    def changes(self) -> int:
        """How many things are changed in a step."""
        return sum(change is not None for change in (self.micro_batch, self.segments, self.precision))

    @property
    def way(self) -> Way:
        """How a step is computed."""
        return Way(self.segments, self.micro_batch is not None)


def candidates(
    figures: Figures,
    batch_size: int,
    micro_sizes: Sequence[int],
    micro_fidelity: Fidelity,
    fronts: Sequence[Segments],
    policy: str | None = None,
) -> Iterator[Candidate]:
    """Yields every combination of micro-batches, rematerialisation and precision, the stock step first.

    Wherever anything is changed at all, the inputs stay on the host if they can: nothing is cheaper.

    Args:
        figures: The job's figures.
        batch_size: The batch asked for.
        micro_sizes: Sizes of micro-batches to consider; empty where the lever does not apply.
        micro_fidelity: How faithful they are for this model.
        fronts: Choices of what to keep for the backward pass; empty where the lever does not apply.
        policy: The mixed precision to consider; None where the lever does not apply.
    """
    stock = figures.need(Way(), batch_size) + figures.waiting(batch_size)
    yield Candidate(Fidelity.EXACT, stock, 1.0)
    host = figures.host_inputs
    for precision in (None, policy) if policy else (None,):
        for micro_batch in (None, *micro_sizes):
            for segments in (None, *fronts):
                if not host and (precision, micro_batch, segments) == (None, None, None):
                    continue
                near = Fidelity.EXACT if micro_batch is None else micro_fidelity
                yield Candidate(
                    fidelity=near if precision is None else max(near, mixed_precision.FIDELITY),
                    peak=_peak(figures, batch_size, micro_batch, segments, precision),
                    time=_time(figures, batch_size, micro_batch, segments),
                    micro_batch=micro_batch,
                    segments=segments,
                    precision=precision,
                    inputs_on_host=host,
                )


def best(found: Sequence[Candidate], memory: int, allow: Fidelity) -> Candidate | None:
    """The fastest of the most faithful candidates that fit; None where none fits.

    Of those that are as fast, as far as predictions can tell, it is the one that changes least.
    """
    fitting = [candidate for candidate in found if candidate.peak <= memory and candidate.fidelity <= allow]
    if not fitting:
        return None
    fidelity = min(candidate.fidelity for candidate in fitting)
    faithful = [candidate for candidate in fitting if candidate.fidelity == fidelity]
    fastest = min(candidate.time for candidate in faithful)
    as_fast = [candidate for candidate in faithful if candidate.time <= fastest + _SAME_TIME]
    return min(as_fast, key=lambda candidate: (candidate.changes, candidate.time))


def predicted_saving(segments: Segments, size: int) -> int:
    """What segments save by their own prediction: it grows with the samples that pass at once."""
    return (segments.stock_bytes - segments.activation_bytes) * size // segments.batch_size


def _peak(
    figures: Figures,
    batch_size: int,
    micro_batch: int | None,
    segments: Segments | None,
    precision: str | None,
) -> int:
    size = micro_batch or batch_size
    peak = figures.need(Way(segments, micro_batch is not None), size)
    if precision is not None:
        saved = 0 if segments is None else figures.need(Way(), size) - figures.need(Way(segments), size)
        peak -= int(mixed_precision.SAVED_OF_ACTIVATIONS * max(figures.activations(size) - saved, 0))
    if not figures.host_inputs:
        peak += figures.waiting(batch_size) + figures.inputs * (batch_size - size)
    return peak


def _time(figures: Figures, batch_size: int, micro_batch: int | None, segments: Segments | None) -> float:
    parts = 1 if micro_batch is None else -(-batch_size // micro_batch)
    again = 0.0 if segments is None else figures.recomputed(segments)
    reading = host_inputs.COST if figures.host_inputs else 0.0
    return 1 + figures.fixed_time(batch_size) * (parts - 1) + again + reading
