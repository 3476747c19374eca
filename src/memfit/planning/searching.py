"""`plan`: the most faithful changes that make a job fit, and of those the fastest, without trial runs."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from memfit.budgets.budget import budget
from memfit.budgets.errors import InvalidInput
from memfit.budgets.nvml import gpus
from memfit.budgets.size import Size
from memfit.estimation.estimate import Estimate
from memfit.estimation.estimating import estimate
from memfit.estimation.gpu_compiler.estimate import CompiledEstimate
from memfit.estimation.gpus import gpu
from memfit.estimation.specs import mapped, spec_of
from memfit.planning import micro_batches, mixed_precision
from memfit.planning.bound import upper_bound
from memfit.planning.candidates import Candidate, Figures, best, candidates, predicted_saving
from memfit.planning.fidelity import Fidelity
from memfit.planning.fingerprint import fingerprint
from memfit.planning.job import Job
from memfit.planning.levers import levers
from memfit.planning.plan import Plan
from memfit.planning.refusal import refusal
from memfit.planning.rematerialisation import front
from memfit.planning.rematerialisation_segments import Segments

# The batch that is looked at first when the largest one is asked for, and the largest that is looked for at all.
_REFERENCE_BATCH, _LARGEST_BATCH = 32, 2**14
# How many choices of segments are recorded at most before the search gives up on recording more.
_RECORDINGS = 3
# Keras's pipeline of arrays holds a copy of them and, measured at batches of 3 and 6 MiB, three to six batches.
_BATCHES_WAITING = 5
# Seen on two cores: four micro-batches cost 3% (MobileNetV2, batch 32). On a GPU nobody has measured it here.
_FIXED_TIME = 0.01


AnyEstimate = Estimate | CompiledEstimate
Recorder = Callable[[Segments, int], AnyEstimate]


def search(
    model: Any,
    batch_size: int | Literal["max"],
    memory: int | str | None = None,
    allow: str = "near",
    *,
    data: Any = None,
    validation_batch_size: int | None = None,
    recorder: Recorder | None = None,
    device: str | None = None,
) -> Plan:
    """Searches the plan; `memfit.plan` is this with the recorder of the training room.

    What segments save is first taken from their own prediction, which knows the ops but not the allocator; the
    step with the segments chosen is then recorded, and the search goes on with what that showed, so that the
    plan's peak is always one that a recording stands behind.

    Args:
        model: A compiled Keras model.
        batch_size: Samples in one optimizer update, or "max" for as many as fit.
        memory: What the job may take on its device, such as "8GiB" or "80%"; None for what is free there.
        allow: The farthest that the plan may go: "exact", "near", "precision" or "model".
        data: An example of the training data (or the dataset), where the model does not tell its inputs.
        validation_batch_size: Samples in a validation batch; None where there is no validation.
        recorder: Estimates the step with some segments at a batch size, by recording it; None to trust the
            segments' own prediction.
        device: A GPU to plan for, whose compiler is asked where it is installed; None for this machine.

    Returns:
        The plan; print it, or give it to `memfit.fit(..., plan=plan)`.

    Raises:
        DoesNotFit: If no allowed plan fits; it says what would.
        InvalidInput: If an argument is none, or the memory is less than the weights alone take.
    """
    allowed = Fidelity.read(allow)
    if batch_size != "max" and (
        isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1
    ):
        raise InvalidInput('`batch_size` is a whole number of at least 1, or "max"', received=batch_size)
    available = gpu(device).usable if device and memory is None else _memory(memory)
    _check_weights(model, available)
    if batch_size != "max" and device is None:
        bound = upper_bound(model, max(batch_size, validation_batch_size or 1))
        if bound is not None and bound <= available:
            return _clear_fit(Job(model, batch_size, available, allowed), bound)
    return _Search(
        model, batch_size, available, allowed, data, validation_batch_size, recorder, device
    ).plan()


class _Search:
    """One search: the estimate and the choices of segments are made once and serve every batch size."""

    def __init__(
        self,
        model: Any,
        batch_size: int | Literal["max"],
        memory: Size,
        allow: Fidelity,
        data: Any,
        validation_batch_size: int | None,
        recorder: Recorder | None,
        device: str | None,
    ) -> None:
        self.model, self.memory, self.allow, self.data = model, memory, allow, data
        self.asked = batch_size
        self.reference = _REFERENCE_BATCH if batch_size == "max" else batch_size
        self.validation_batch_size = validation_batch_size
        self.estimate: AnyEstimate = estimate(model, self.reference, data=data, device=device)
        self.fixed_time = _fixed_time(self.estimate)
        self.margin = self.estimate.margin
        self.inputs = _bytes(spec_of(model, data).batch(1))
        self.on_gpu = device is not None or bool(gpus())
        self.micro_fidelity, _ = micro_batches.fidelity(model)
        self.can_micro_batch = micro_batches.why_not(model) is None
        self.policy = mixed_precision.policy(device) if mixed_precision.why_not(model) is None else None
        self.fronts: tuple[Segments, ...] = ()
        self.no_segments: str | None = None
        self.recorder = recorder
        self.recorded: dict[Segments, AnyEstimate] = {}
        self.realised = 1.0  # the part of a predicted saving that a recording found to be real

    def plan(self) -> Plan:
        """Finds the plan, or raises what is in the way of one."""
        if self.asked != "max":
            stock = self._candidates(self.asked)[0]
            if stock.peak <= self.memory:
                return self._made(self.asked, stock)
        self._find_segments()
        batch_size, chosen = self._choice()
        for _ in range(_RECORDINGS if self.recorder is not None else 0):
            if chosen is not None:
                segments, size = chosen.segments, chosen.micro_batch or batch_size
            else:
                # Nothing seems to fit: the choice that keeps least has to show whether that is so.
                segments, size = (self.fronts[-1] if self.fronts else None), batch_size or 1
            if segments is None or segments in self.recorded:
                break
            self._record(segments, size)
            batch_size, chosen = self._choice()
        if chosen is not None and chosen.segments not in (None, *self.recorded) and self.recorder is not None:
            # Enough has been recorded: only what a recording stands behind is left to choose from.
            self.fronts = tuple(self.recorded)
            batch_size, chosen = self._choice()
        if chosen is None:
            raise self._refusal(batch_size or 1)
        return self._made(batch_size, chosen)

    def _choice(self) -> tuple[int, Candidate | None]:
        """The batch and the best candidate for it, as far as is known by now."""
        batch_size = self._largest_batch(self.allow) if self.asked == "max" else self.asked
        return batch_size, best(self._candidates(batch_size), self.memory, self.allow) if batch_size else None

    def _record(self, segments: Segments, size: int) -> None:
        assert self.recorder is not None
        self.recorded[segments] = self.recorder(segments, size)
        real = self._peak(size) - self._recorded_peak(segments, size)
        self.realised = max(0.0, real / max(predicted_saving(segments, size), 1))

    @cache  # noqa: B019 - a search lives as long as one call of `plan`
    def _recorded_peak(self, segments: Segments, size: int) -> int:
        return int(_at(self.recorded[segments], size).peak)

    @cache  # noqa: B019 - as above
    def _recorded_need(self, segments: Segments, size: int) -> int:
        """The peak with its own margin: ops in one line leave other gaps in the memory than stock's do."""
        return int(_at(self.recorded[segments], size).needed)

    def _saved(self, segments: Segments, size: int) -> int:
        """What segments save: as recorded, or as predicted and corrected by what other recordings showed."""
        if segments in self.recorded:
            return int(self._peak(size) * (1 + self.margin)) - self._recorded_need(segments, size)
        return int(self.realised * predicted_saving(segments, size))

    @property
    def figures(self) -> Figures:
        """What the estimate says, as the candidates need it."""
        return Figures(
            peak=lambda size: int(self._peak(size) * (1 + self.margin)),
            activations=self._activations,
            saved=self._saved,
            gradients=4 * sum(math.prod(weight.shape) for weight in self.model.trainable_variables),
            inputs=self.inputs,
            waiting=self._waiting,
            fixed_time=self.fixed_time,
            recomputed=self._recomputed,
        )

    def _recomputed(self, segments: Segments) -> float:
        """The extra time of segments: by the kernels that the GPU's compiler made of them, where it was asked."""
        found = self.recorded.get(segments)
        if not isinstance(found, CompiledEstimate) or not isinstance(self.estimate, CompiledEstimate):
            return segments.recomputed
        return max(0.0, found.seconds / self.estimate.sketch(found.batch_size).seconds - 1)

    @cache  # noqa: B019 - a search lives as long as one call of `plan`
    def _peak(self, size: int) -> int:
        """The peak of the stock step at a batch size."""
        return int(_at(self.estimate, size).peak)

    @cache  # noqa: B019 - as above
    def _activations(self, size: int) -> int:
        return int(_at(self.estimate, size).breakdown["activations"])

    def _waiting(self, batch_size: int) -> int:
        """What the input pipeline holds in the device's memory: on a GPU nothing to speak of, in the arena much."""
        if self.on_gpu:
            return 0
        return _bytes(self.data) + _BATCHES_WAITING * self.inputs * batch_size

    def _find_segments(self) -> None:
        try:
            self.no_segments = micro_batches.custom_step(self.model)
            if self.no_segments is None:
                self.fronts = front(self.model, self.reference, self._inputs())
        except InvalidInput as error:
            self.no_segments = str(error)

    def _inputs(self) -> Any:
        """Tensor specs of the inputs; None where the model tells them itself."""
        import tensorflow as tf

        if getattr(self.model, "inputs", None):
            return None
        structure = spec_of(self.model, self.data).structure
        x = structure[0] if isinstance(structure, tuple) else structure
        return mapped(lambda leaf: tf.TensorSpec((self.reference, *leaf.shape), leaf.dtype), x)

    def _candidates(self, batch_size: int) -> list[Candidate]:
        sizes = micro_batches.sizes(batch_size) if self.can_micro_batch else ()
        return list(
            candidates(self.figures, batch_size, list(sizes), self.micro_fidelity, self.fronts, self.policy)
        )

    def _largest_batch(self, allow: Fidelity) -> int:
        """The largest batch for which an allowed candidate fits; 0 for none."""

        def fits(size: int) -> bool:
            return best(self._candidates(size), self.memory, allow) is not None

        if not fits(1):
            return 0
        low, high = 1, 2
        while high <= _LARGEST_BATCH and fits(high):
            low, high = high, 2 * high
        while high - low > max(1, low // 64):  # to within 2%, as the prediction is no finer
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _refusal(self, batch_size: int) -> Exception:
        found = self._candidates(batch_size)
        smallest = min(candidate.peak for candidate in found if candidate.fidelity <= self.allow)
        beyond = best(found, self.memory, Fidelity.MODEL)
        largest = 0 if self.asked == "max" else self._largest_batch(self.allow)
        return refusal(
            batch_size,
            self.memory,
            self.allow,
            Size(smallest),
            largest,
            None if beyond is None else beyond.fidelity,
        )

    def _made(self, batch_size: int, chosen: Candidate) -> Plan:
        job = Job(self.model, batch_size, self.memory, self.allow, self.no_segments)
        validation_batch = self._validation_batch()
        size = chosen.micro_batch or batch_size
        if chosen.segments in self.recorded:
            margin = self._recorded_need(chosen.segments, size) - self._recorded_peak(chosen.segments, size)
        else:
            margin = int(self._peak(size) * self.margin)
        return Plan(
            model=fingerprint(self.model),
            batch_size=batch_size,
            memory=self.memory,
            fidelity=chosen.fidelity,
            stock=Size(self._peak(batch_size) + self._waiting(batch_size)),
            predicted=Size(chosen.peak - margin),
            margin=Size(margin),
            time=chosen.time,
            source=self.estimate.source,
            micro_batch=chosen.micro_batch,
            segments=chosen.segments,
            precision=chosen.precision,
            validation_batch=validation_batch,
            levers=levers(job, self.figures, chosen, validation_batch),
        )

    def _validation_batch(self) -> int | None:
        """The largest slices in which a validation batch fits; None where it fits whole."""
        whole = self.validation_batch_size
        # A validation step takes less than a training step; it is recorded only where that does not settle it.
        if whole is None or self.figures.peak(whole) + self._waiting(whole) <= self.memory:
            return None
        for size in (whole, *micro_batches.sizes(whole)):
            peak = _at(self.estimate.validate, size).peak * (1 + self.margin) + self._waiting(whole)
            if peak <= self.memory:
                return None if size == whole else size
        return 1


def _at(found: AnyEstimate, size: int) -> AnyEstimate:
    """The estimate at a batch size; a compiled one is not compiled for each of the many sizes looked at."""
    return found.sketch(size) if isinstance(found, CompiledEstimate) else found.at(size)


def _fixed_time(found: AnyEstimate) -> float:
    """The part of a step's time that does not depend on the batch; two more compilations show it for a GPU."""
    if not isinstance(found, CompiledEstimate):
        return _FIXED_TIME
    batch = found.batch_size
    for size in {1, max(1, batch // 4)}:
        found.curve.compiled(size)
    quarter = max(1, batch // 4)
    if quarter == batch:
        return 0.0
    slope = (found.seconds - found.curve.compiled(quarter).seconds) / (batch - quarter)
    return max(0.0, 1 - slope * batch / found.seconds)


def _bytes(batch: Any) -> int:
    """Bytes of the arrays in a nested structure; a dataset has none of its own."""
    if isinstance(batch, dict):
        return sum(map(_bytes, batch.values()))
    if isinstance(batch, tuple | list):
        return sum(map(_bytes, batch))
    return int(getattr(batch, "nbytes", 0))


def _memory(memory: int | str | None) -> Size:
    device = budget().device
    return device.free if memory is None else Size(memory, of=device.total)


def _check_weights(model: Any, memory: Size) -> None:
    weights = Size(4 * sum(math.prod(weight.shape) for weight in model.weights))
    if weights > memory:
        raise InvalidInput(
            f"The weights alone take {weights}, and no plan can make them smaller",
            received=f"memory={memory}",
            remedy="Give more memory, or use a smaller network",
        )


def _clear_fit(job: Job, bound: Size) -> Plan:
    """The plan of a job that fits by far: nothing changes, and nothing had to be recorded to know it."""
    figures = Figures(lambda size: int(bound), lambda size: 0, predicted_saving, 0, 0, lambda size: 0, 0.0)
    chosen = Candidate(Fidelity.EXACT, int(bound), 1.0)
    return Plan(
        model=fingerprint(job.model),
        batch_size=job.batch_size,
        memory=job.memory,
        fidelity=Fidelity.EXACT,
        stock=bound,
        predicted=bound,
        margin=Size(0),
        time=1.0,
        source="upper bound from the layers' shapes",
        levers=levers(job, figures, chosen, None),
    )
