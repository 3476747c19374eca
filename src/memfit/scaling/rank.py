"""One rank of a job, as a training sees it.

A step is: *share* (all ranks learn how large the whole batch is), *compute* (each its own share; one may run out of
memory, roll back and try again while the others wait), *sum* (gradients, metrics, statistics) and *update* (Keras's
own optimizer, the same bits everywhere). Ranks meet in the first and the third only.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from memfit.compat import keras_training
from memfit.data.shapes import count_samples
from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Plan
from memfit.scaling.callbacks import callbacks_of_rank, saving_of_rank
from memfit.scaling.communicator import Ranks
from memfit.scaling.conditions import (
    agree_on_call,
    check_data,
    check_model,
    explain_mixed_samples,
    explain_statistics,
    layers_to_synchronize,
)
from memfit.scaling.reading import Reading, reading_shares
from memfit.scaling.states import DivisorCount, share_changes
from memfit.scaling.survivors import meeting_others
from memfit.scaling.synchronized import synchronized
from memfit.steps.host_arrays import HostArrays
from memfit.steps.sharded_state import sharded_state
from memfit.steps.share import Share, split_evenly, use_ranks
from memfit.steps.train_step import TrainStep
from memfit.training.batches import count_data
from memfit.training.guard.evaluation import slice_batch
from memfit.training.peers import Peers


class Rank(Peers):
    """One rank of a job."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.rank, self.count = ranks.rank, ranks.count
        self._fraction = 0.0
        self._synchronized = False  # whether layers of the model that is trained meet the other ranks
        self._reading = Reading()
        self._counted: set[str] = set()  # the phases of which all ranks are known to have the same batches
        self._new = False  # whether a training has begun and no batch was trained yet
        use_ranks(ranks)
        self._sum = tf.function(ranks.sum_small, autograph=False, reduce_retracing=True)

    @contextmanager
    def training(
        self, model: keras.Model, arguments: dict[str, Any], allowed: Fidelity
    ) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Lets a model be trained on all ranks for a while."""
        check_model(model)
        check_data(arguments, self.count)
        agree_on_call(self.ranks, model, arguments, allowed)
        layers = layers_to_synchronize(model, allowed)
        remarks = [explain_statistics(model, layers, self.count)]
        arguments["callbacks"] = callbacks_of_rank(arguments["callbacks"], self.rank)
        if self.rank:
            arguments["verbose"] = 0
        phases = {"training": arguments["x"], "validation": arguments["validation_data"]}
        self._counted = {phase for phase, data in phases.items() if count_data(data) is not None}
        own, self._synchronized, self._new = model.jit_compile, bool(layers), True
        if own:
            remarks.append(
                "XLA is turned off on several ranks: gradients are summed between computing and updating."
            )
            model.jit_compile = False
            self.xla_is_off = True
        try:
            with (
                synchronized(self.ranks, layers),
                saving_of_rank(model, self.rank),
                reading_shares(arguments, self.rank, self.count) as self._reading,
            ):
                remarks += self._reading.remarks
                yield arguments, [remark for remark in remarks if remark is not None]
        finally:
            self._synchronized, self._reading, self._counted = False, Reading(), set()
            if own:
                model.jit_compile = own
                self.xla_is_off = False

    def explain_shares(self, model: keras.Model, data: Any, allowed: Fidelity) -> list[str]:
        """Says what a rank's share of a batch gives otherwise than the whole batch does."""
        return [*explain_mixed_samples(model, data, allowed, self.count)]

    def read_shares(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of `fit` with data of which this rank reads its share, where that can be."""
        return self._reading.replace(arguments)

    def settle(self, plan: Plan | None) -> Plan | None:
        """Returns this rank's own plan, made for its own memory, unless plans differ in what changes numbers.

        Then all ranks follow the one that goes farthest: that is decided once, and a step in another precision, or
        another optimizer's state, has to be the same on all of them.
        """
        numbers: list[Any] = [str(Fidelity.EXACT), []]
        if plan is not None:
            numbers = [str(plan.fidelity), [change.to_json() for change in plan.recipe.changes]]
        with meeting_others():
            if all(other == numbers for other in self.ranks.gather(numbers)):
                return plan
            everyone = self.ranks.gather(None if plan is None else plan.to_json())
        plans = [Plan.from_json(each) for each in everyone if each is not None]
        return max(plans, key=lambda each: (each.fidelity, len(each.recipe.changes)))

    def share_of(self, model: keras.Model, phase: str) -> Share:
        """Returns what the steps of a phase have to know of the whole batch."""
        kept = keras_training.kept_steps(model)
        key = ("share", phase, self._synchronized)
        if key not in kept:
            kept[key] = Share(meets_others=self._synchronized and phase == "training")
        share: Share = kept[key]
        return share

    def begin(
        self, model: keras.Model, data: Any, spec: Any, phase: str, host: HostArrays | None = None
    ) -> tuple[Any, Any]:
        """Returns this rank's share of a batch and its spec, once all ranks know of the whole one."""
        divisors = self._divisor_count(model, phase, host, data)
        samples = count_samples(data)
        first, end = (
            (0, samples) if phase in self._reading.shares else split_evenly(samples, self.rank, self.count)
        )
        size = end - first
        mine = slice_batch(data, first, size) if size else None
        spec = keras.tree.map_structure(_of_any_size, spec)
        with meeting_others():
            if self._new and phase == "training":
                self._begin_alike(model)
            counts = divisors.count(mine, spec)
            if counts or phase not in self._counted or phase in self._reading.shares:
                sizes, totals = self._learn(size, counts)
                first, whole = sum(sizes[: self.rank]), sum(sizes)
            else:  # all ranks have this batch before them, and as many more
                whole, totals = samples, []
        if whole < self.count and self.share_of(model, phase).meets_others:
            raise InvalidInput(
                "Synchronized batch statistics need at least one sample on every rank",
                received=f"a batch of {whole} on {self.count} ranks",
                remedy="Drop the small last batch (drop_remainder=True)",
            )
        self._fraction = size / whole
        share = self.share_of(model, phase)
        share.set(first, whole, totals or None)
        return mine, spec

    def computing(self, undo: Callable[[], None]) -> AbstractContextManager[None]:
        """Surrounds a step: layers may have synchronized statistics."""
        return meeting_others(undo) if self._synchronized else nullcontext()

    def end_pass(self) -> None:
        """Tells the others that this rank has no batch left.

        Raises:
            InvalidInput: If another rank has one.
        """
        with meeting_others():
            self._learn(0, [], ended=True)

    def exchange(
        self, model: keras.Model, changes: Sequence[tuple[Any, Any]], logs: Any, step: TrainStep | None = None
    ) -> Any:
        """Adds up gradients, metrics and statistics of all ranks; returns the metrics of the whole batch."""

        def undo() -> None:
            if step is not None:
                step.undo()
            for variable, before in changes:
                variable.assign(before)

        with meeting_others(undo):
            if step is not None:
                step.sum_over(self.ranks)
            return share_changes(self.ranks, model, changes, self._fraction)

    def share_weights(self, model: keras.Model) -> None:
        """Gives every rank the weights that others have updated, where each updates a part of them."""
        if (shard := sharded_state(model)) is not None:
            with meeting_others():
                shard.send_weights()

    def join_rows(self, outputs: Any) -> Any:
        """Returns the outputs of all ranks' shares, one behind the other."""
        with meeting_others():
            return keras.tree.map_structure(self.ranks.joined, outputs)

    def _begin_alike(self, model: keras.Model) -> None:
        """Lets all ranks begin with the state of the one that has trained most, the first one as a rule."""
        variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
        if (shard := sharded_state(model)) is not None:
            variables = shard.leave_out(variables)
        unique = list({id(variable): variable.value for variable in variables}.values())
        self.ranks.share_newest(unique, int(model.optimizer.iterations))
        self._new = False

    def _divisor_count(
        self, model: keras.Model, phase: str, host: HostArrays | None, data: Any
    ) -> DivisorCount:
        kept = keras_training.kept_steps(model)
        key = ("divisors", phase, host)
        if key not in kept:
            if host is None:
                keras_training.build(model, *keras.utils.unpack_x_y_sample_weight(data))
            kept[key] = DivisorCount(model, host)
        count: DivisorCount = kept[key]
        return count

    def _learn(
        self, samples: int, counts: Sequence[float], *, ended: bool = False
    ) -> tuple[list[int], list[float]]:
        """Returns how many samples of a batch each rank has, and the sums of their counts.

        Raises:
            InvalidInput: If some ranks are at the end of their data and others are not.
        """
        sizes = [0] * self.count
        sizes[self.rank] = samples
        mine = tf.constant([float(ended), *sizes, *counts], tf.float64)
        ends, *numbers = self._sum(mine).numpy().tolist()
        if ends not in (0, self.count):
            raise InvalidInput(
                "All ranks must have the same number of batches",
                received=f"{'no batch left' if ended else 'another batch'} on rank {self.rank}, not on all",
                remedy="Give every rank the same data: each takes its part of every batch by itself",
            )
        return [int(number) for number in numbers[: self.count]], numbers[self.count :]


def _of_any_size(spec: Any) -> Any:
    """A spec of batches of any number of samples."""
    if isinstance(spec, tf.TensorSpec):
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if spec.shape.rank else spec
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec([None, *spec.shape[1:]], spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(
            [None, *spec.shape[1:]], spec.dtype, spec.ragged_rank, spec.row_splits_dtype
        )
    return spec
