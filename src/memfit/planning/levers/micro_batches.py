"""Micro-batches (gradient accumulation): one update from several smaller passes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras

from memfit.compat.keras_layers import all_layers
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Facts, Lever
from memfit.steps.recipe import Recipe

# Normalised over one sample a feature is a constant, and over two it is a sign: nothing could be learned from it.
_LEAST_NORMALISED = 4


class MicroBatches(Lever):
    """Computes a batch in parts and updates once."""

    name = "micro-batches"
    of_any_step = True

    def fidelity(self, job: Job) -> Fidelity:
        """Exact, unless a layer looks across the batch, moves its state with every part, or draws other numbers."""
        return self._judge(job)[0]

    def explain(self, job: Job) -> str:
        """Says why micro-batches are exact or near."""
        return self._judge(job)[1]

    def why_not(self, job: Job) -> str | None:
        """Says why a batch cannot be cut."""
        if job.only_batch is not None:
            return f"its step runs with no other batch than one of {job.only_batch}"
        return job.why_not_micro_batches

    def see_in_data(self, job: Job) -> str | None:
        """Whether what the user wrote gives the same in parts of a batch."""
        return job.losses_differ

    def offer(self, job: Job, recipe: Recipe, batch_size: int) -> Iterator[Recipe]:
        """Offers the batch in 2, 3, 4, 6, 8, ... parts."""
        for size in list_sizes(batch_size, least_size(job.model)):
            yield replace(recipe, micro_batch=size)

    def undo(self, recipe: Recipe) -> Recipe:
        """Computes whole batches."""
        return replace(recipe, micro_batch=None)

    def describe(self, recipe: Recipe, batch_size: int) -> str:
        """Says how many parts of how many samples."""
        size = recipe.micro_batch or batch_size
        return f"{-(-batch_size // size)} of {size} samples"

    def predict_saving(self, facts: Facts, recipe: Recipe, batch_size: int) -> int:
        """A part takes what a batch of its size takes, a copy of the gradients, and the inputs that wait."""
        whole, size = self.undo(recipe), recipe.micro_batch or batch_size
        waiting = facts.inputs * (batch_size - size) + facts.waiting(batch_size) - facts.waiting(size)
        of_part = facts.need(whole, size) + facts.gradients + (0 if recipe.inputs_on_host else waiting)
        return facts.need(whole, batch_size) - of_part

    def predict_cost(self, facts: Facts, recipe: Recipe, batch_size: int) -> float:
        """Every further part costs what a step costs whatever its batch."""
        parts = -(-batch_size // (recipe.micro_batch or batch_size))
        return facts.fixed_time(batch_size) * (parts - 1)

    def tighten(self, job: Job, recipe: Recipe, batch_size: int, share: float) -> Recipe | None:
        """Returns the largest micro-batches that are at most so small a share of the present ones."""
        now = min(recipe.micro_batch or batch_size, batch_size)
        sizes = [size for size in list_sizes(batch_size, least_size(job.model)) if size < now]
        small_enough = [size for size in sizes if size <= share * now]
        if not sizes:
            return None
        return replace(recipe, micro_batch=small_enough[0] if small_enough else sizes[-1])

    def _judge(self, job: Job) -> tuple[Fidelity, str]:
        why = _find_layer_that_differs(job.model) or job.state_changes or job.outputs_differ
        reasons = dict.fromkeys(reason for reason in (why, job.losses_differ) if reason is not None)
        if reasons:
            return Fidelity.NEAR, "; ".join(reasons)
        return Fidelity.EXACT, "no layer looks across the batch"


def _find_layer_that_differs(model: Any) -> str | None:
    """Says which layers are known to compute something else from fewer samples."""
    layers = all_layers(model)
    normalising = [
        layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    if normalising:
        return f"batch statistics over fewer samples in {_name(normalising)}"
    for layer in layers:
        if isinstance(layer, keras.layers.SpectralNormalization):
            return f"the state of {layer.name} changes with every micro-batch"
    return None


def least_size(model: Any) -> int:
    """The fewest samples that a micro-batch may have: one, unless layers normalise over the samples alone.

    Where there are images or sequences, each sample has many values for the statistics.
    """
    for layer in all_layers(model):
        flat = isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and layer.built
        if flat and layer.input_spec.ndim == 2:
            return _LEAST_NORMALISED
    return 1


def list_sizes(batch_size: int, least: int = 1) -> Iterator[int]:
    """The sizes worth trying, largest first: the batch in 2, 3, 4, 6, 8, 12, ... parts, down to the least."""
    last = batch_size
    parts = 2
    while last > least:
        size = max(least, -(-batch_size // parts))
        if size < last:
            yield size
            last = size
        parts = parts * 3 // 2 if parts & (parts - 1) == 0 else parts * 4 // 3


def _name(layers: Sequence[Any]) -> str:
    """Names the first layer, and says how many more there are."""
    more = len(layers) - 1
    return layers[0].name + (f" and {more} more layer{'s' * (more > 1)}" if more else "")
