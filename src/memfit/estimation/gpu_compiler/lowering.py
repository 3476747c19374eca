"""A training step as the HLO that XLA gets of it, without running it: no data, only shapes."""

from contextlib import suppress
from typing import Any

from memfit.compat import keras_layers, keras_training, tf_profiles
from memfit.compat.keras_optimizers import know_own_variables
from memfit.estimation.gpu_compiler.compiled import NotCompiled, Parts
from memfit.estimation.gpu_compiler.compiling import run_compiler
from memfit.estimation.optimizers import optimizers_of
from memfit.estimation.recording.kept import size_of
from memfit.estimation.recording.keras_step import KerasStep, has_own_step
from memfit.estimation.recording.sending import unpacked
from memfit.estimation.recording.specs import Spec, mapped
from memfit.estimation.recording.step import Build, Step
from memfit.estimation.recording.xla import read_ir


def lower_step(payload: bytes, build: Build | None, batch: int, phase: str) -> tuple[bytes, Parts]:
    """Lowers a phase of the packed (model, spec) at a batch size, in another process.

    Args:
        payload: What `packed` made.
        build: Builds the training step; None for the model's own.
        phase: "train", "validate" or "predict".

    Returns:
        The serialized HLO module (equal steps have equal bytes), and what its arguments are made of.

    Raises:
        NotCompiled: If TensorFlow cannot hand the step to XLA; it says why.
    """
    args, environment = (payload, build, batch, phase), {"CUDA_VISIBLE_DEVICES": "-1"}
    lowered: tuple[bytes, Parts] = run_compiler(
        lower_here, args, environment, "XLA cannot compile the step: TensorFlow"
    )
    return lowered


def lower_here(payload: bytes, build: Build | None, batch: int, phase: str) -> tuple[bytes, Parts]:
    """Does the work of `lower_step`, in the process for it."""
    model, spec, step = prepare_step(payload, build, phase)
    hlo = tf_profiles.canonical(read_ir(step, spec, batch, "hlo_serialized"))
    return hlo, describe_parts(model, spec, phase)


def prepare_step(payload: bytes, build: Build | None, phase: str) -> tuple[Any, Spec, Step]:
    """Unpacks a model, builds it, and returns it with its batches' shapes and its step."""
    import keras

    model, (spec,) = unpacked(payload)
    for optimizer in optimizers_of(model):
        know_own_variables(optimizer)
    model.jit_compile = True  # as on a GPU; on a CPU Keras resolves "auto" to False, and steps look at it
    if phase == "train" and "make_train_function" in vars(model):
        raise NotCompiled("it overrides make_train_function, and only a train_step can be compiled")
    # A custom step may have no use for this or fail in it; then the step makes its variables itself.
    with suppress(Exception):
        keras_training.build(model, *keras.utils.unpack_x_y_sample_weight(spec.batch(2)))
    if phase == "train" and not model.optimizer.built and not has_own_step(model):
        model.optimizer.build(model.trainable_variables)  # a step of one's own chooses what it trains
    return model, spec, KerasStep(model, phase) if build is None else build(model)


def describe_parts(model: Any, spec: Spec, phase: str) -> Parts:
    """Returns what the arguments of a phase are made of."""
    leaves: list[Any] = []
    mapped(leaves.append, spec.structure)
    optimizers = optimizers_of(model) if phase == "train" else []
    return Parts(
        weights=sum(map(size_of, model.variables)),
        optimizer=sum(size_of(variable) for optimizer in optimizers for variable in optimizer.variables),
        sample=sum(map(size_of, leaves)),
        layers=tuple(layer.name for layer in keras_layers.all_layers(model) if layer is not model),
        optimizer_name=getattr(model.optimizer, "name", ""),
    )
