"""Whether a model's loss adds up from the parts of a batch; tried where it is not known.

Keras's own losses, layers and regularisers of weights do. A loss that a layer adds, an overridden `compute_loss`
and a loss function that returns one number are taken for means over the samples; whether they are is seen only by
computing them.
"""

from typing import Any

import keras

from memfit.compat.keras_layers import all_layers
from memfit.steps.micro_batches.exactness import has_code_of_its_own, try_in_parts

# Losses of Keras that compare the samples of a batch, or divide by sums over it.
_OVER_THE_BATCH = {"dice", "tversky", "circle"}


def has_to_be_checked(model: keras.Model) -> bool:
    """Says whether anything can have a part in a model's loss that is not known to add up.

    That is all but Keras's own code, and of that the losses over a whole batch, and the activity regularisers: they
    are means over the samples in Keras 3.15, and were sums in 3.12.
    """
    if has_code_of_its_own(model) or any(
        layer.activity_regularizer is not None for layer in all_layers(model)
    ):
        return True
    if type(model).compute_loss is not keras.Model.compute_loss:
        return True
    losses = keras.tree.flatten(model.loss) if getattr(model, "loss", None) is not None else []
    return not all(map(_adds_up, losses))


def find_loss_difference(model: keras.Model, data: Any) -> str | None:
    """Returns how training on some samples in parts differs from training on them at once, or None.

    Nothing of the model changes, but that it is built.

    Args:
        data: Samples as `fit` takes them, as many as there are, or a batch as Keras gives it to a step.
    """
    if not has_to_be_checked(model):
        return None
    verdict = try_in_parts(model, data)
    return verdict.adds_up or verdict.differs


def _adds_up(loss: Any) -> bool:
    """Whether a loss is one of Keras's that are means, or sums, over the samples."""
    loss = getattr(loss, "fn", loss)
    if loss is None or isinstance(loss, str):
        return str(loss).lower() not in _OVER_THE_BATCH
    kind = loss if hasattr(loss, "__name__") else type(loss)
    return str(kind.__module__).startswith("keras.") and kind.__name__.lower() not in _OVER_THE_BATCH
