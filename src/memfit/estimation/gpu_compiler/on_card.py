"""Compiling a step on the GPU that is here, by TensorFlow's own XLA: what is asked without memfit[gpu-compiler].

It was run on a CPU only, which XLA compiles for in the same way: there was no GPU here.
"""

import tempfile
import time

from memfit.compat.tf_profiles import read_hlo
from memfit.estimation.gpu_compiler.compiled import Compiled, Parts
from memfit.estimation.gpu_compiler.compiling import read_dump, read_module, run_compiler
from memfit.estimation.gpu_compiler.lowering import describe_parts, prepare_step
from memfit.estimation.recording.step import Build
from memfit.estimation.recording.xla import read_ir


def compile_on_card(
    payload: bytes, build: Build | None, batch: int, phase: str, device: str = "/GPU:0"
) -> tuple[Compiled, Parts]:
    """Compiles a phase of the packed (model, spec) for a device of this machine, in another process.

    Takes what `lower_step` takes, and TensorFlow's name of the device.

    Raises:
        NotCompiled: If it does not compile there; it says why.
    """
    with tempfile.TemporaryDirectory(prefix="memfit-xla-") as folder:
        environment = {
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # the caller may hold most of the card
            "XLA_FLAGS": f"--xla_dump_hlo_as_text --xla_dump_to={folder}",
        }
        args = (payload, build, batch, phase, device, folder)
        compiled: tuple[Compiled, Parts] = run_compiler(compile_here, args, environment, "TensorFlow's XLA")
        return compiled


def compile_here(
    payload: bytes, build: Build | None, batch: int, phase: str, device: str, folder: str
) -> tuple[Compiled, Parts]:
    """Does the work of `compile_on_card`, in the process for it."""
    model, spec, step = prepare_step(payload, build, phase)
    begin = time.perf_counter()
    proto = read_hlo(read_ir(step, spec, batch, "optimized_hlo_proto_serialized", device))
    seconds = time.perf_counter() - begin
    text = read_dump(folder, "after_optimizations")
    if "(%" not in text:  # TensorFlow 2.19 dumps names without their sign: what it returns has them
        text = str(read_ir(step, spec, batch, "optimized_hlo", device))
    buffers = proto.buffer_assignment.buffer_allocations
    given = [buffer for buffer in buffers if buffer.is_entry_computation_parameter]
    written_over = sum(buffer.size for buffer in given if buffer.maybe_live_out)
    own = [
        buffer
        for buffer in buffers
        if not (buffer.is_entry_computation_parameter or buffer.is_constant or buffer.is_thread_local)
    ]
    compiled = Compiled(
        arguments=sum(buffer.size for buffer in given),
        outputs=written_over + sum(buffer.size for buffer in own if buffer.maybe_live_out),
        alias=written_over,
        temporaries=sum(buffer.size for buffer in own if not buffer.maybe_live_out),
        seconds=seconds,
        **read_module(text, folder),
    )
    return compiled, describe_parts(model, spec, phase)
