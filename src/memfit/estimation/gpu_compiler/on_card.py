"""Compiling a step on the GPU that is here, by TensorFlow's own XLA: what is asked without memfit[gpu-compiler].

It was run on a CPU only, which XLA compiles for in the same way: there was no GPU here.
"""

import subprocess
import tempfile
import time
from dataclasses import dataclass

from memfit.budgets.isolation import run_isolated
from memfit.compat.tf_profiles import read_hlo
from memfit.errors import ProcessDied
from memfit.estimation.gpu_compiler import memory_map
from memfit.estimation.gpu_compiler.compiled import Compiled
from memfit.estimation.gpu_compiler.compiling import LIVING, read_dump
from memfit.estimation.gpu_compiler.lowering import Lowered, describe_step, prepare_step
from memfit.estimation.gpu_compiler.module_text import read
from memfit.estimation.gpu_compiler.refusal import NotCompiled
from memfit.estimation.recording.step import Build
from memfit.estimation.recording.xla import read_ir

_SECONDS = 600.0


@dataclass(frozen=True)
class OnCard:
    """A step as it was compiled for the device, and what is known of its model."""

    compiled: Compiled
    lowered: Lowered


def compile_on_card(
    payload: bytes, build: Build | None, batch: int, phase: str, device: str = "/GPU:0"
) -> OnCard:
    """Compiles a phase of the packed (model, spec) for a device of this machine, in another process.

    Args:
        payload: What `packed` made.
        build: Builds the training step; None for the model's own.
        batch: The batch size.
        phase: "train", "validate" or "predict".
        device: TensorFlow's name of the device.

    Raises:
        NotCompiled: If it does not compile there; it says why.
    """
    with tempfile.TemporaryDirectory(prefix="memfit-xla-") as folder:
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # the caller may hold most of the card
            "XLA_FLAGS": f"--xla_dump_hlo_as_text --xla_dump_to={folder}",
        }
        try:
            return run_isolated(
                compile_here,
                (payload, build, batch, phase, device, folder),
                environment=environment,
                timeout=_SECONDS,
                stderr=subprocess.DEVNULL,
            )
        except TimeoutError as error:
            raise NotCompiled(f"TensorFlow's XLA took more than {_SECONDS:g} s") from error
        except ProcessDied as error:
            raise NotCompiled(f"TensorFlow's XLA crashed: {error}") from error
        except NotCompiled:
            raise
        except Exception as error:  # whatever TensorFlow, XLA and the model's own code raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            raise NotCompiled(f"TensorFlow's XLA refused it ({reason})") from error


def compile_here(
    payload: bytes, build: Build | None, batch: int, phase: str, device: str, folder: str
) -> OnCard:
    """Does the work of `compile_on_card`, in the process for it."""
    model, spec, step = prepare_step(payload, build, phase)
    begin = time.perf_counter()
    proto = read_hlo(read_ir(step, spec, batch, "optimized_hlo_proto_serialized", device))
    seconds = time.perf_counter() - begin
    text = read_dump(folder, "after_optimizations")
    if "(%" not in text:  # TensorFlow 2.19 dumps names without their sign: what it returns has them
        text = str(read_ir(step, spec, batch, "optimized_hlo", device))
    module = read(text)
    memory = memory_map.read(read_dump(folder, "-buffer-assignment"), read_dump(folder, "-live-range"))
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
        living=module.living(memory.at(memory.fullest()))[:LIVING],
        kernels=module.kernels(),
        workspace=memory.more(module.convolutions()),
        buffers=len(given),
        seconds=seconds,
    )
    return OnCard(compiled, describe_step(model, spec, phase, b""))
