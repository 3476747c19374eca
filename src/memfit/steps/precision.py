"""Training a model in mixed precision for a while: its layers compute in 16 bits, its weights stay float32."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import keras

from memfit.budgets.gpu_table import GPU
from memfit.compat.keras_layers import all_layers, output_layers
from memfit.errors import InvalidInput
from memfit.steps.change import Change

POLICIES = ("mixed_bfloat16", "mixed_float16")


@dataclass(frozen=True)
class MixedPrecision(Change):
    """Lets layers compute under a mixed dtype policy.

    Attributes:
        policy: "mixed_bfloat16" or "mixed_float16".
    """

    kind: ClassVar[str] = "precision"
    policy: str

    def applied(self, model: Any) -> AbstractContextManager[None]:
        """Lowers the model's layers for a while."""
        return lower(model, self.policy)

    def __str__(self) -> str:
        return self.policy


@contextmanager
def lower(model: keras.Model, policy: str) -> Iterator[None]:
    """Lets a model compute under a mixed policy, and gives it its own policies back afterwards.

    The layers that give the outputs of a functional model stay in float32, as Keras advises: a softmax or a
    regression in 16 bits loses more than it saves. With float16 the optimizer is wrapped for loss scaling.

    Raises:
        InvalidInput: If the policy is another, or the model's layers do not all compute in float32.
    """
    if policy not in POLICIES:
        raise InvalidInput(f"A plan's precision is one of {', '.join(POLICIES)}", received=policy)
    if (reason := why_not_lowered(model)) is not None:
        raise InvalidInput(
            "Only a model that computes in float32 can be switched to mixed precision", received=reason
        )
    layers = list_lowered(model)
    own = [layer.dtype_policy for layer in layers]
    optimizer = model.optimizer
    _forget_compiled_steps(model)
    try:
        for layer in layers:
            layer.dtype_policy = policy
        if policy == "mixed_float16" and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            model.optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="memfit_loss_scale")
        yield
    finally:
        for layer, before in zip(layers, own, strict=True):
            layer.dtype_policy = before
        model.optimizer = optimizer
        _forget_compiled_steps(model)


def why_not_lowered(model: Any) -> str | None:
    """Says why a model cannot be switched to mixed precision, or None where it can."""
    for layer in all_layers(model):
        if layer.dtype_policy.name != "float32":
            return f"{layer.name} already uses the policy {layer.dtype_policy.name}"
    return None


def list_lowered(model: Any) -> list[Any]:
    """Lists the layers that compute in 16 bits under a mixed policy: all but those that give the outputs."""
    kept = {id(layer) for layer in output_layers(model)}
    return [layer for layer in all_layers(model) if id(layer) not in kept]


def choose_policy(device: GPU | None) -> str:
    """Returns the policy for a GPU: bfloat16, but float16 where it does not have that."""
    return "mixed_bfloat16" if device is None or device.bfloat16 else "mixed_float16"


def _forget_compiled_steps(model: keras.Model) -> None:
    """What Keras had traced before computes in the other precision."""
    model.train_function = model.test_function = model.predict_function = None
