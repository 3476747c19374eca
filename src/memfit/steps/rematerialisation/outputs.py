"""A model's outputs as a loss has to see them: with their masks, and with the logits that they come from.

Keras computes a cross-entropy from the logits where it can see that the probabilities are their softmax or sigmoid,
and otherwise from probabilities that are cut off at 1e-7: another loss, with other gradients.
"""

from collections.abc import Iterator

from memfit.compat.keras_layers import copy_mask, logits_of, set_logits
from memfit.compat.tf_graphs import Tensor

# Keras looks at the type of the op that made the probabilities, where it does not know the logits itself.
_LAST_OPS = ("Softmax", "Sigmoid")


def list_passed(output: Tensor) -> list[Tensor]:
    """Lists what has to be passed on of an output so that `finish_output` can make it whole."""
    logits = logits_of(output)
    if logits is not None:
        return [output, logits]
    return [output.op.inputs[0]] if output.op.type in _LAST_OPS else [output]


def finish_output(output: Tensor, passed: Iterator[Tensor]) -> Tensor:
    """Returns an output made of what was passed on, which is taken from `passed`."""
    import tensorflow as tf

    if logits_of(output) is not None:
        new = next(passed)
        set_logits(new, next(passed))
    elif output.op.type in _LAST_OPS:
        last = {"Softmax": tf.nn.softmax, "Sigmoid": tf.nn.sigmoid}[output.op.type]
        new = last(next(passed))
    else:
        new = next(passed)
    copy_mask(output, new)
    return new


def is_zero(gradient: Tensor | None) -> bool:
    """Whether nothing comes back to an output: TensorFlow hands zeros over for one that the loss does not read."""
    import tensorflow as tf

    if gradient is None or gradient.op.type == "ZerosLike":
        return True
    return gradient.op.type == "Const" and not tf.get_static_value(gradient).any()
