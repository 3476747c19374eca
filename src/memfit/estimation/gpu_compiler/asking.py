"""`estimate_with_compiler`: from a packed model and a GPU to what its compiler says."""

import logging
from functools import cache
from typing import Any

from memfit.budgets.gpu_table import GPU, nearest, present_gpu
from memfit.compat import keras_layers
from memfit.compat.versions import installed_version
from memfit.estimation.estimate import Estimate
from memfit.estimation.gpu_compiler.compiled import Compiled, NotCompiled, Parts, Refused, load_or_compile
from memfit.estimation.gpu_compiler.compiling import compile_hlo, compiler_version
from memfit.estimation.gpu_compiler.curve import Curve
from memfit.estimation.gpu_compiler.lowering import lower_step
from memfit.estimation.gpu_compiler.on_card import compile_on_card
from memfit.estimation.gpu_compiler.source import CompiledSource
from memfit.estimation.recording.step import Build

_log = logging.getLogger("memfit.progress")


def estimate_with_compiler(
    model: Any, payload: bytes, build: Build | None, batch_size: int, gpu: GPU
) -> Estimate:
    """Compiles a model's training step for a GPU.

    The compiler of memfit[gpu-compiler] is asked, else TensorFlow's own XLA, if the GPU is here.

    Args:
        model: The compiled Keras model, which is only looked at.
        payload: The packed (model, spec).
        build: Builds the training step; None for the model's own.
        batch_size: Samples in a step.
        gpu: What to compile for.

    Raises:
        NotCompiled: If the compiler has no answer; it says why.
    """
    if gpu.specs is None:
        raise NotCompiled(
            f"memfit knows only the memory of the {gpu.name}; `memfit devices` lists the others"
        )
    here = gpu == present_gpu()
    if model.run_eagerly:
        raise NotCompiled("it runs eagerly, so Keras does not compile it")
    if here and not model.jit_compile:
        raise NotCompiled("Keras does not compile it (jit_compile=False)")
    if (reason := keras_layers.why_not_xla(model)) is not None:
        raise NotCompiled(f"Keras would not compile it with XLA: {reason}")
    specs = gpu.specs
    try:
        version, on_card = compiler_version(), False
    except NotCompiled:
        if not here:
            raise
        version, on_card = f"TensorFlow {installed_version('TensorFlow')} on the card", True

    @cache
    def compile_step(phase: str, batch: int) -> tuple[Compiled, Parts]:
        phase_build = build if phase == "train" else None
        if on_card:
            return compile_on_card(payload, phase_build, batch, phase)
        _log.info("tracing the step at batch %d", batch)
        hlo, parts = lower_step(payload, phase_build, batch, phase)
        _log.info("compiling it for %s", gpu.name)
        compiled = load_or_compile(hlo, specs.target, version, lambda: compile_hlo(hlo, specs.target))
        _log.info("batch %d on %s: %d MiB", batch, gpu.name, compiled.peak // 2**20)
        return compiled, parts

    @cache
    def estimate_phase(phase: str) -> Estimate:
        curve = Curve(lambda batch: compile_step(phase, batch)[0], specs)
        try:
            curve.compiled(batch_size)
        except Refused as refusal:
            raise NotCompiled(f"{refusal}; the nearest GPU to ask about is {nearest(gpu)}") from refusal
        _, parts = compile_step(phase, batch_size)
        source = CompiledSource(f"compiled for NVIDIA {gpu.name} (XLA, {version})", gpu, parts, curve)
        return Estimate(batch_size, phase, source, estimate_phase if phase == "train" else None)

    return estimate_phase("train")


def describe_doubt(model: Any) -> str:
    """Says for which layers a recording is known to be far below what XLA takes; an empty text for none.

    Of what a loop reads in each time step XLA keeps copies, weights included, which TensorFlow's own loops do not.
    Two LSTM layers of 512 over 256 tokens: 5.4 GiB compiled, 1.5 recorded (benchmarks/results/gpu_compiler.json).
    """
    if model.run_eagerly or keras_layers.why_not_xla(model) is not None:
        return ""
    looping = keras_layers.loops(model)
    if not looping:
        return ""
    return f"; XLA's loops over time may take several times the figure for {', '.join(looping)}"
