"""Data that changes its shape on the way: one sentence instead of an op's complaint."""

from typing import Any

import keras

from memfit.errors import InvalidInput
from memfit.steps.installing import is_custom


def check_shapes(model: keras.Model, data: Any, batch: int) -> None:
    """Looks at a batch that a step has failed with; a custom `train_step` may make other inputs of its data.

    Raises:
        InvalidInput: If the batch is not of the shape that the model takes.
    """
    if is_custom(model, "train_step"):
        return
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    inputs = getattr(model, "inputs", None) or []
    parts = [x.get(tensor.name) for tensor in inputs] if isinstance(x, dict) else keras.tree.flatten(x)
    for tensor, part in zip(inputs, parts, strict=False):
        wanted, given = tuple(tensor.shape), tuple(getattr(part, "shape", tensor.shape))
        # Keras itself adds or takes away an axis of one, and says so where it cannot.
        if len(wanted) == len(given) and any(
            want not in (None, got) for want, got in zip(wanted, given, strict=True)
        ):
            raise InvalidInput(
                f'All batches are of the shape {wanted} that the model takes for "{tensor.name}"',
                received=f"{given} in batch {batch}",
                remedy="Crop, pad or leave out what is of another shape; the batches before it are trained",
            )
