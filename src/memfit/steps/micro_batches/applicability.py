"""Which models' training can be cut into micro-batches."""

from typing import Any

from memfit.steps.installing import why_step_is_fixed


def why_not_micro_batches(model: Any) -> str | None:
    """Says why a model's training cannot be cut into micro-batches, or None where it can."""
    import keras

    fixed = why_step_is_fixed(model)
    if fixed is not None:
        return fixed
    if any(getattr(weight, "overwrite_with_gradient", False) for weight in model.trainable_variables):
        return "it has weights that are overwritten with their gradient (float8)"
    losses = keras.tree.flatten(model.loss) if getattr(model, "loss", None) is not None else []
    if len(losses) > 1 and any(getattr(loss, "reduction", "sum") in (None, "none") for loss in losses):
        return 'it adds a loss with reduction="none" to other losses'
    return None
