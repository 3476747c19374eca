"""What is known of a job while its plan is searched: recordings, segments, and the candidates they make."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from memfit.budgets.nvml import gpus
from memfit.errors import InvalidInput
from memfit.estimation.estimate import Estimate
from memfit.estimation.estimating import estimate
from memfit.estimation.recording.specs import mapped, spec_of
from memfit.planning.candidates import Candidate, Figures, Way, best, candidates
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers import host_inputs, micro_batches, mixed_precision
from memfit.planning.recorded_steps import RecordedSteps, Recorder
from memfit.steps.rematerialisation import Segments, find_choices

# The batch that is looked at first when the largest one is asked for.
_REFERENCE_BATCH = 32
# Keras's pipeline of arrays holds a copy of them and, measured at batches of 3 and 6 MiB, three to six batches.
_BATCHES_WAITING = 5
# Seen on two cores: four micro-batches cost 3% of a step of 32 samples (MobileNetV2), so that each costs as much as
# a third of a sample. On a GPU nobody has measured it here.
_FIXED_SAMPLES = 0.32


class Prospects:
    """The candidates for a job, by what recordings have shown so far.

    Attributes:
        steps: The ways of computing a step that were recorded.
        fronts: The choices of segments.
        no_segments: Why nothing can be rematerialised; None where it can.
    """

    def __init__(self, job: Job, recorder: Recorder | None) -> None:
        """Records the stock step.

        Args:
            job: What is planned for.
            recorder: Records another way of computing the step; None to trust the predictions.
        """
        model = job.model
        self.job, self._recorder = job, recorder
        self._reference = _REFERENCE_BATCH if job.batch_size == "max" else job.batch_size
        self.fronts: tuple[Segments, ...] = ()
        self.no_segments: str | None = None
        self._looked = False
        self._micro_fidelity, _ = micro_batches.fidelity(model)
        self._least = micro_batches.least(model)
        self._can_micro_batch = micro_batches.why_not(model) is None
        stock = self._recorded_stock()
        self._inputs = _bytes(spec_of(model, job.data).batch(1))
        gradients = 4 * sum(math.prod(weight.shape) for weight in model.trainable_variables)
        self.steps = RecordedSteps(stock, job.memory, gradients, self._inputs)
        self._fixed_samples = _fixed_samples(stock)
        self._on_gpu = job.device is not None or bool(gpus())
        self._policy = mixed_precision.policy(job.device) if mixed_precision.why_not(model) is None else None

    def _recorded_stock(self) -> Estimate:
        """Records the stock step in another process, and looks at the graph of the step in this one meanwhile."""
        model, copied = self.job.model, threading.Event()
        with ThreadPoolExecutor(max_workers=1) as pool:
            recording = pool.submit(
                estimate,
                model,
                self._reference,
                data=self.job.data,
                device=self.job.device,
                when_copied=copied.set,
            )
            recording.add_done_callback(lambda _: copied.set())
            copied.wait()
            # A GPU's compiler is asked by this process; and whoever is not built is not to be built for nothing.
            if self.job.device is None and model.built and not recording.done():
                if self._recorder is not None and not model.jit_compile:
                    self._recorder.begin(self._reference)
                self.find_segments()
                self._expect_the_largest_batch()
            return recording.result()

    def _expect_the_largest_batch(self) -> None:
        """Has recorded what the largest batch will be computed with: parts, or the segments that take least."""
        if self._recorder is None or self.job.batch_size != "max":
            return
        if self._can_micro_batch and self._micro_fidelity <= self.job.allow:
            self._recorder.expect(Way(None, True))
        elif self.fronts:
            self._recorder.expect(Way(self.fronts[-1]))

    def find_segments(self) -> None:
        """Looks for choices of segments, once; until then there are none."""
        if self._looked:
            return
        self._looked = True
        try:
            self.no_segments = micro_batches.custom_step(self.job.model)
            if self.no_segments is None:
                # A GPU's step is asked of its compiler, which is XLA.
                compiled = True if self.job.device is not None else None
                self.fronts = find_choices(
                    self.job.model, self._reference, self._input_specs(), compiled=compiled
                )
                if self.fronts and compiled and self.steps.stock.estimate.compiled:
                    # Where the others are not enough; it costs more time.
                    self.fronts = (*self.fronts, replace(self.fronts[-1], split_convolutions=True))
        except InvalidInput as error:
            self.no_segments = str(error)

    @property
    def last_resort(self) -> Way | None:
        """The way with the largest convolutions in parts of the batch, where it was not asked for yet.

        What it saves beyond its segments is known only when a GPU's compiler has said it.
        """
        if not self.fronts or not self.fronts[-1].split_convolutions:
            return None
        way = Way(self.fronts[-1])
        return way if self.can_record(way) else None

    def candidates(self, batch_size: int, allow: Fidelity = Fidelity.MODEL) -> list[Candidate]:
        """Every candidate for a batch that is allowed, the stock step first."""
        cut = self._can_micro_batch and self._micro_fidelity <= allow
        sizes = list(micro_batches.sizes(batch_size, self._least)) if cut else []
        policy = self._policy if allow >= mixed_precision.FIDELITY else None
        return list(candidates(self.figures, batch_size, sizes, self._micro_fidelity, self.fronts, policy))

    def best(
        self, batch_size: int, *, memory: int | None = None, recorded_only: bool = False
    ) -> Candidate | None:
        """The best candidate for a batch that fits and is allowed; None for none.

        Args:
            batch_size: The batch.
            memory: Bytes to fit into; None for the job's.
            recorded_only: Whether to leave out what could be recorded and was not.
        """
        found = self.candidates(batch_size, self.job.allow)
        if recorded_only:
            found = [candidate for candidate in found if not self.can_record(candidate.way)]
        return best(found, self.job.memory if memory is None else memory, self.job.allow)

    def can_record(self, way: Way) -> bool:
        """Whether recording a way would tell more than is known.

        A GPU's compiler takes minutes for a step in parts, and XLA on the CPU has them in another form.
        """
        if self._recorder is None or way in self.steps:
            return False
        return not way.in_parts or not (self.job.model.jit_compile or self.steps.stock.estimate.compiled)

    def record(self, way: Way, size: int) -> None:
        """Records a way of computing the step, if that would tell more, for so many samples at once."""
        if self._recorder is not None and self.can_record(way):
            self.steps.add(way, self._recorder(way, size), size)

    @property
    def figures(self) -> Figures:
        """What is known, as the candidates need it."""
        return Figures(
            need=self.steps.need,
            activations=self.steps.activations,
            inputs=self._inputs,
            waiting=self.waiting,
            fixed_time=lambda size: self._fixed_samples / size,
            recomputed=self._recomputed,
            host_inputs=host_inputs.why_not(self.job.model, self.job.data, self.job.device) is None,
        )

    def waiting(self, batch_size: int) -> int:
        """What Keras's input pipeline holds in the device's memory: on a GPU next to nothing, in the arena much."""
        if self._on_gpu:
            return 0
        return _bytes(self.job.data) + _BATCHES_WAITING * self._inputs * batch_size

    def _recomputed(self, segments: Segments) -> float:
        """The extra time of segments: by the kernels that the GPU's compiler made of them, where it was asked."""
        found, stock = self.steps.of(Way(segments)), self.steps.stock.estimate
        if found is None or found.step_time is None:
            return segments.recomputed
        without = stock.sketch(found.batch_size).step_time
        return segments.recomputed if without is None else max(0.0, found.step_time / without - 1)

    def _input_specs(self) -> Any:
        """Tensor specs of the inputs; None where the model tells them itself."""
        import tensorflow as tf

        if getattr(self.job.model, "inputs", None):
            return None
        structure = spec_of(self.job.model, self.job.data).structure
        x = structure[0] if isinstance(structure, tuple) else structure
        return mapped(lambda leaf: tf.TensorSpec((self._reference, *leaf.shape), leaf.dtype), x)


def _fixed_samples(found: Estimate) -> float:
    """The time of a step that does not depend on the batch, in samples; two more compilations show it for a GPU."""
    batch, whole = found.batch_size, found.step_time
    if whole is None:
        return _FIXED_SAMPLES
    quarter = max(1, batch // 4)
    # The line between them is the one that further batch sizes are ranked by.
    _, part = found.at(1).step_time, found.at(quarter).step_time
    if quarter == batch or part is None:
        return 0.0
    slope = (whole - part) / (batch - quarter)
    return max(0.0, batch * (1 - slope * batch / whole))


def _bytes(batch: Any) -> int:
    """Bytes of the arrays in a nested structure; a dataset has none of its own."""
    if isinstance(batch, dict):
        return sum(map(_bytes, batch.values()))
    if isinstance(batch, tuple | list):
        return sum(map(_bytes, batch))
    return int(getattr(batch, "nbytes", 0))
