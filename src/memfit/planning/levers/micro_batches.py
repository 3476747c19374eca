"""The lever of micro-batches: one update from several smaller passes."""

from collections.abc import Iterator
from typing import Any

from memfit.compat.keras_layers import all_layers
from memfit.planning.fidelity import Fidelity

NAME = "micro-batches"
# Normalised over one sample a feature is a constant, and over two it is a sign: nothing could be learned from it.
_LEAST_NORMALISED = 4


def fidelity(model: Any) -> tuple[Fidelity, str]:
    """Says how faithful micro-batches are for a model, and why."""
    import keras

    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            if layer.trainable:
                return Fidelity.NEAR, f"{layer.name} would see fewer samples"
        elif isinstance(layer, keras.layers.SpectralNormalization) or _has_state_of_its_own(layer):
            return Fidelity.NEAR, f"{layer.name} has state that moves with every micro-batch"
    return Fidelity.EXACT, "no layer looks across the batch"


def why_not(model: Any) -> str | None:
    """Says why a model's training cannot be cut into micro-batches, or None where it can."""
    import keras
    import tensorflow as tf

    if (reason := custom_step(model)) is not None:
        return reason
    replicas = (tf.distribute.get_strategy(), model.distribute_strategy)
    if any(strategy.num_replicas_in_sync > 1 for strategy in replicas):
        return "it is trained on several replicas"
    if any(getattr(weight, "overwrite_with_gradient", False) for weight in model.trainable_variables):
        return "it has weights that are overwritten with their gradient (float8)"
    losses = keras.tree.flatten(model.loss) if getattr(model, "loss", None) is not None else []
    if len(losses) > 1 and any(getattr(loss, "reduction", "sum") in (None, "none") for loss in losses):
        return 'it adds a loss with reduction="none" to other losses'
    return None


def custom_step(model: Any) -> str | None:
    """Says that a model has its own `train_step`, which no lever can look into, or None."""
    import keras

    if "train_step" in vars(model) or type(model).train_step is not keras.Model.train_step:
        return "its train_step is custom, and only that method knows how its losses add up"
    return None


def least(model: Any) -> int:
    """The fewest samples that a micro-batch may have: one, unless layers normalise over the samples alone.

    Where there are images or sequences, each sample has many values for the statistics.
    """
    import keras

    for layer in all_layers(model):
        flat = isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and layer.built
        if flat and layer.input_spec.ndim == 2:
            return _LEAST_NORMALISED
    return 1


def sizes(batch_size: int, least: int = 1) -> Iterator[int]:
    """The sizes worth trying, largest first: the batch in 2, 3, 4, 6, 8, 12, ... parts, down to the least."""
    last = batch_size
    parts = 2
    while last > least:
        size = max(least, -(-batch_size // parts))
        if size < last:
            yield size
            last = size
        parts = parts * 3 // 2 if parts & (parts - 1) == 0 else parts * 4 // 3


def _has_state_of_its_own(layer: Any) -> bool:
    """Whether a layer that is not Keras's own keeps weights that are not trained: it may change them in a call."""
    if type(layer).__module__.startswith("keras.") or not layer.trainable:
        return False
    inner = {id(weight) for other in all_layers(layer)[1:] for weight in other.weights}
    return any(id(weight) not in inner for weight in layer.non_trainable_weights)
