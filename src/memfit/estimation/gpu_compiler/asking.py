"""`estimate_with_compiler`: from a packed model and a GPU to what its compiler says."""

import logging
from functools import cache
from typing import Any

from memfit.budgets.device_specs import Specs
from memfit.budgets.gpu_table import GPU, nearest
from memfit.budgets.present_gpu import present_gpu
from memfit.compat import keras_layers
from memfit.estimation.estimate import Estimate
from memfit.estimation.gpu_compiler.cache import load_or_compile
from memfit.estimation.gpu_compiler.compiled import Compiled
from memfit.estimation.gpu_compiler.compiling import compile_hlo
from memfit.estimation.gpu_compiler.curve import Curve
from memfit.estimation.gpu_compiler.installed import compiler_version
from memfit.estimation.gpu_compiler.lowering import Lowered, lower_step
from memfit.estimation.gpu_compiler.on_card import compile_on_card
from memfit.estimation.gpu_compiler.refusal import NotCompiled, Refused
from memfit.estimation.gpu_compiler.source import CompiledSource, Parts
from memfit.estimation.recording.step import Build

_log = logging.getLogger("memfit")


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
    compiler, version = _choose_compiler(here=here)
    specs = gpu.specs
    name = getattr(model.optimizer, "name", "")

    @cache
    def phase_estimate(phase: str) -> Estimate:
        compile_batch = compiler(payload, build if phase == "train" else None, phase, specs, version)
        curve = Curve(compile_batch, specs)
        try:
            curve.compiled(batch_size)
        except Refused as refusal:
            raise NotCompiled(f"{refusal}; the nearest GPU to ask about is {nearest(gpu)}") from refusal
        facts = compile_batch.last
        parts = Parts(facts.weights, facts.optimizer, facts.batch_bytes, facts.layers, name)
        source = CompiledSource(f"compiled for NVIDIA {gpu.name} (XLA, {version})", gpu, parts, curve)
        return Estimate(batch_size, phase, source, phase_estimate if phase == "train" else None)

    return phase_estimate("train")


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


def _choose_compiler(*, here: bool) -> tuple["type[_GpuCompiler] | type[_TensorFlowOnCard]", str]:
    """Returns who compiles, and its version.

    Raises:
        NotCompiled: If the GPU's compiler is not installed, and the GPU is not in this machine.
    """
    try:
        return _GpuCompiler, compiler_version()
    except NotCompiled:
        if not here:
            raise
        import tensorflow

        return _TensorFlowOnCard, f"TensorFlow {tensorflow.__version__} on the card"


class _GpuCompiler:
    """Compiles a phase of a packed model at one batch size after the other, as `memfit[gpu-compiler]` does."""

    def __init__(self, payload: bytes, build: Build | None, phase: str, specs: Specs, version: str) -> None:
        self._payload, self._build, self._phase = payload, build, phase
        self._specs, self._version = specs, version
        self.last: Lowered

    def __call__(self, batch: int) -> Compiled:
        _log.info("tracing the step at batch %d", batch)
        self.last = lower_step(self._payload, self._build, batch, self._phase)
        hlo, target = self.last.hlo, self._specs.target
        _log.info("compiling it for %s", self._specs.name)
        step = load_or_compile(hlo, target, self._version, lambda: compile_hlo(hlo, target))
        _log.info("batch %d on %s: %d MiB", batch, self._specs.name, step.peak // 2**20)
        return step


class _TensorFlowOnCard:
    """Compiles a phase of a packed model at one batch size after the other, on the GPU in this machine."""

    def __init__(self, payload: bytes, build: Build | None, phase: str, specs: Specs, version: str) -> None:
        self._payload, self._build, self._phase = payload, build, phase
        self.last: Lowered

    def __call__(self, batch: int) -> Compiled:
        done = compile_on_card(self._payload, self._build, batch, self._phase)
        self.last = done.lowered
        return done.compiled
