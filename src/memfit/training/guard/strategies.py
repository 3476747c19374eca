"""What Keras computes otherwise under a `tf.distribute` strategy than on one device, as far as a model has it.

Each was measured against one device (`docs/scaling.md`). memfit's own ranks have none of it.
"""

from typing import Any

import keras

from memfit.compat.keras_layers import all_layers

_INSTEAD = (
    "Without the strategy and its scope, `memfit run --ranks N script.py` trains on N devices as on one."
)


def explain_strategy(model: keras.Model) -> str:
    """Says, in one sentence, what the strategy that runs a compiled model's steps makes of its results."""
    differences = _find_differences(model)
    return (
        f"Under a distribution strategy Keras computes this differently: {'; '.join(differences)}. {_INSTEAD}"
    )


def explain_distribution() -> str | None:
    """Says that `keras.distribution` does nothing here, where it is set; None where it is not."""
    try:
        if keras.config.backend() != "tensorflow" or keras.distribution.distribution() is None:
            return None
    except (AttributeError, NotImplementedError):
        return None
    return (
        "keras.distribution is accepted on TensorFlow and does nothing: one device computes everything. "
        "`memfit run --ranks N script.py` trains on N devices."
    )


def _find_differences(model: keras.Model) -> list[str]:
    differences = ["a last batch that does not divide evenly weighs too much or too little"]
    optimizer: Any = model.optimizer
    if any(getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue")):
        differences.append("gradients are clipped on each replica, before their sum")
    layers = list(all_layers(model))
    normalising = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    if any(not layer.synchronized for layer in normalising):
        differences.append(
            "batch statistics are each replica's own, and what all but the first have seen is lost"
        )
    if any(isinstance(layer, keras.layers.Dropout) and layer.rate for layer in layers):
        differences.append("dropout masks are the same on all replicas")
    if any(isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False) for layer in layers):
        differences.append("losses with masks are a mean of means")
    if getattr(model.loss, "reduction", "") == "mean_with_sample_weight":
        differences.append("losses with sample weights are a mean of means")
    return differences
