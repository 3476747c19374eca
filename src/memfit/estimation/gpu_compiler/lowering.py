"""A training step as the HLO that XLA gets of it, without running it: no data, only shapes."""

import math
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memfit.budgets.isolation import run_isolated
from memfit.compat import keras_layers, keras_training, tf_profiles
from memfit.compat.keras_optimizers import know_own_variables
from memfit.errors import InvalidInput, ProcessDied
from memfit.estimation.gpu_compiler.refusal import NotCompiled
from memfit.estimation.recording.keras_step import KerasStep
from memfit.estimation.recording.sending import unpacked
from memfit.estimation.recording.specs import Spec, mapped
from memfit.estimation.recording.step import Build, Step
from memfit.estimation.recording.xla import read_ir

# Tracing a large model takes seconds; a model whose own code hangs must not hold the caller for ever.
_SECONDS = 600.0


@dataclass(frozen=True)
class Lowered:
    """A step at one batch size.

    Attributes:
        hlo: The serialized HLO module; equal steps have equal bytes.
        weights: Bytes of the model's variables.
        optimizer: Bytes of the optimizer's.
        batch_bytes: Bytes of one sample, its targets and its weight.
        layers: Names of the layers, nested ones included.
    """

    hlo: bytes
    weights: int
    optimizer: int
    batch_bytes: int
    layers: tuple[str, ...]


def lower_step(payload: bytes, build: Build | None, batch: int, phase: str) -> Lowered:
    """Lowers a phase of the packed (model, spec) at a batch size, in another process.

    Args:
        payload: What `packed` made.
        build: Builds the training step; None for the model's own.
        batch: The batch size.
        phase: "train", "validate" or "predict".

    Raises:
        NotCompiled: If TensorFlow cannot hand the step to XLA; it says why.
    """
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        return run_isolated(
            lower_here,
            (payload, build, batch, phase),
            environment=environment,
            timeout=_SECONDS,
            stderr=subprocess.DEVNULL,
        )
    except TimeoutError as error:
        raise NotCompiled(f"TensorFlow took more than {_SECONDS:g} s to trace the step") from error
    except ProcessDied as error:
        raise NotCompiled(f"TensorFlow crashed while it traced the step: {error}") from error
    except (NotCompiled, InvalidInput):
        raise
    except Exception as error:  # whatever TensorFlow, Keras and the model's own code raise
        raise NotCompiled(f"XLA cannot compile the step: {_reason(error)}") from error


def lower_here(payload: bytes, build: Build | None, batch: int, phase: str) -> Lowered:
    """Does the work of `lower_step`, in the process for it."""
    model, spec, step = prepare_step(payload, build, phase)
    return describe_step(
        model, spec, phase, tf_profiles.canonical(read_ir(step, spec, batch, "hlo_serialized"))
    )


def prepare_step(payload: bytes, build: Build | None, phase: str) -> tuple[Any, Spec, Step]:
    """Unpacks a model, builds it, and returns it with its batches' shapes and its step."""
    import keras

    model, (spec,) = unpacked(payload)
    know_own_variables(model.optimizer)
    model.jit_compile = True  # as on a GPU; on a CPU Keras resolves "auto" to False, and steps look at it
    if phase == "train" and "make_train_function" in vars(model):
        raise NotCompiled("its training function is its own, and only a train_step can be compiled")
    # A custom step may have no use for this or fail in it; then the step makes its variables itself.
    with suppress(Exception):
        keras_training.build(model, *keras.utils.unpack_x_y_sample_weight(spec.batch(2)))
    if phase == "train" and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return model, spec, KerasStep(model, phase) if build is None else build(model)


def describe_step(model: Any, spec: Spec, phase: str, hlo: bytes) -> Lowered:
    """Returns a phase's HLO with the sizes that belong to it."""
    return Lowered(
        hlo=hlo,
        weights=sum(_bytes(v.shape, v.dtype) for v in model.variables),
        optimizer=sum(_bytes(v.shape, v.dtype) for v in model.optimizer.variables) if phase == "train" else 0,
        batch_bytes=sum(_bytes(leaf.shape, leaf.dtype) for leaf in _leaves(spec.structure)),
        layers=tuple(layer.name for layer in keras_layers.all_layers(model) if layer is not model),
    )


def _leaves(structure: Any) -> list[Any]:
    leaves: list[Any] = []
    mapped(leaves.append, structure)
    return leaves


def _bytes(shape: Any, dtype: str) -> int:
    import tensorflow as tf

    return math.prod(int(size) for size in shape) * int(tf.as_dtype(dtype).size)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
