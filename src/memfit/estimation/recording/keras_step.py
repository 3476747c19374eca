"""Keras's own step, and what it takes to record it as it would first run."""

import contextlib
from collections.abc import Sequence
from typing import Any

from memfit.estimation.recording.failures import step_failures
from memfit.estimation.recording.specs import Batch, Spec, TensorSpecs, mapped
from memfit.estimation.recording.step import Tensor, Traced
from memfit.estimation.recording.symbolic import outputs_of


def make_variables(model: Any, spec: Spec, batch: int, phase: str) -> None:
    """Makes the variables that Keras would make in the first step, so that the step is traced once, not twice."""
    x, y, weight = _three(spec.batch(batch))
    if not _has_call(model):
        return  # the step calls parts of it, as that of a GAN does, and makes what they need
    if not model.built:
        # A step of one's own may call the model with something else than the data.
        with contextlib.suppress(Exception) if has_own_step(model) else step_failures():
            model(x, training=False)
    if phase == "predict":
        return
    outputs = getattr(model, "outputs", None)
    # A custom step may have no use for these calls or fail in them; then the step makes its variables itself.
    with contextlib.suppress(Exception):
        predicted = spec.like(outputs_of(model), batch) if outputs else model(x, training=False)
        model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight)
        model.compute_metrics(x, y, predicted, sample_weight=weight)


def has_own_step(model: Any) -> bool:
    """Whether a model has a `train_step` of its own."""
    import keras

    return "train_step" in vars(model) or type(model).train_step is not keras.Model.train_step


def _has_call(model: Any) -> bool:
    import keras

    return type(model).call is not keras.Model.call


def _three(data: Any) -> tuple[Any, Any, Any]:
    data = data if isinstance(data, tuple) else (data,)
    x, y, weight = (*data, None, None)[:3]
    return x, y, weight


class KerasStep:
    """The model's own training, test or prediction step, as `fit`, `evaluate` and `predict` run it.

    Args:
        model: A compiled model.
        phase: "train", "validate" or "predict".
    """

    parts = 1
    any_batch = False  # as `train_on_batch` runs it
    is_given_samples = True

    def __init__(self, model: Any, phase: str) -> None:
        import tensorflow as tf

        bodies = {"train": model.train_step, "validate": model.test_step, "predict": model.predict_step}
        body = self._body = step_failures()(bodies[phase])
        self._function = None
        if not model.run_eagerly:
            self._function = tf.function(
                tf.autograph.experimental.do_not_convert(lambda data: body(data)),  # as Keras has it
                jit_compile=True if model.jit_compile else None,
            )

    def trace(self, spec: TensorSpecs) -> Traced | None:
        """Traces it for data of these shapes."""
        return None if self._function is None else self._function.get_concrete_function(spec)

    def run(self, data: Batch, spec: TensorSpecs) -> Any:
        """Runs one step on a batch and returns the logs."""
        import tensorflow as tf

        if self._function is None:
            return self._body(mapped(tf.convert_to_tensor, data))
        return self._function(data)

    def variables(self) -> Sequence[Tensor]:
        """Returns none: it keeps nothing of its own."""
        return ()


def share_slots(optimizer: Any) -> None:
    """Puts the optimizer's state where Keras's first step finds it.

    Keras makes the slots inside the first step's function. There TensorFlow folds equal initial values into one, so
    slots of one shape share a buffer of zeros until their first update: the first step's peak is lower for it, and
    the slots end up in whatever gaps that step left.
    """
    import tensorflow as tf

    zeros: dict[Any, Any] = {}
    for variable in optimizer.variables:
        value = variable.value
        if value.dtype.is_floating and len(value.shape):
            key = (tuple(value.shape), value.dtype)
            if key not in zeros:
                zeros[key] = tf.zeros(*key)
            value.assign(zeros[key])
