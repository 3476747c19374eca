"""The plans that could be made for a job, each with its predicted peak and time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from memfit.planning import mixed_precision
from memfit.planning.fidelity import Fidelity
from memfit.planning.rematerialisation_segments import Segments


@dataclass(frozen=True)
class Figures:
    """What is known about a job's step before anything is changed, in bytes.

    Attributes:
        peak: The predicted peak of the stock step, with its margin, by batch size.
        activations: What of that peak are activations, by batch size.
        saved: What a choice of segments saves, by the samples that pass at once.
        gradients: One copy of the gradients.
        inputs: One sample of the inputs, targets and weights.
        waiting: What the input pipeline holds on the device beside the step, by batch size.
        fixed_time: The part of a step's time that does not depend on the batch, as a fraction of the step at
            the batch asked for: what every further micro-batch costs.
        recomputed: The extra time of a choice of segments, as a part of a stock step.
    """

    peak: Callable[[int], int]
    activations: Callable[[int], int]
    saved: Callable[[Segments, int], int]
    gradients: int
    inputs: int
    waiting: Callable[[int], int]
    fixed_time: float
    recomputed: Callable[[Segments], float] = attrgetter("recomputed")


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
    """

    fidelity: Fidelity
    peak: int
    time: float
    micro_batch: int | None = None
    segments: Segments | None = None
    precision: str | None = None


def candidates(
    figures: Figures,
    batch_size: int,
    micro_sizes: Sequence[int],
    micro_fidelity: Fidelity,
    fronts: Sequence[Segments],
    policy: str | None = None,
) -> Iterator[Candidate]:
    """Yields every combination of micro-batches, rematerialisation and precision, the stock step first.

    Args:
        figures: The job's figures.
        batch_size: The batch asked for.
        micro_sizes: Sizes of micro-batches to consider; empty where the lever does not apply.
        micro_fidelity: How faithful they are for this model.
        fronts: Choices of what to keep for the backward pass; empty where the lever does not apply.
        policy: The mixed precision to consider; None where the lever does not apply.
    """
    for precision in (None, policy) if policy else (None,):
        for micro_batch in (None, *micro_sizes):
            for segments in (None, *fronts):
                near = Fidelity.EXACT if micro_batch is None else micro_fidelity
                yield Candidate(
                    fidelity=near if precision is None else max(near, mixed_precision.FIDELITY),
                    peak=_peak(figures, batch_size, micro_batch, segments, precision),
                    time=_time(figures, batch_size, micro_batch, segments),
                    micro_batch=micro_batch,
                    segments=segments,
                    precision=precision,
                )


def best(found: Sequence[Candidate], memory: int, allow: Fidelity) -> Candidate | None:
    """The fastest of the most faithful candidates that fit; None where none fits."""
    fitting = [candidate for candidate in found if candidate.peak <= memory and candidate.fidelity <= allow]
    return min(fitting, key=lambda candidate: (candidate.fidelity, candidate.time), default=None)


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
    peak = figures.peak(size) + figures.waiting(batch_size)
    activations = figures.activations(size)
    if segments is not None:
        saved = figures.saved(segments, size)
        peak -= saved
        activations = max(activations - saved, 0)
    if precision is not None:
        peak -= int(mixed_precision.SAVED_OF_ACTIVATIONS * activations)
    if micro_batch is not None:
        peak += figures.gradients + figures.inputs * (batch_size - micro_batch)
    return peak


def _time(figures: Figures, batch_size: int, micro_batch: int | None, segments: Segments | None) -> float:
    parts = 1 if micro_batch is None else -(-batch_size // micro_batch)
    return 1 + figures.fixed_time * (parts - 1) + (0.0 if segments is None else figures.recomputed(segments))
