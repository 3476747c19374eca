"""Compiling a step for a GPU, in a process that has JAX and no TensorFlow."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from memfit.budgets.isolation import run_isolated
from memfit.compat import jax_compiler
from memfit.errors import ProcessDied
from memfit.estimation.gpu_compiler import memory_map
from memfit.estimation.gpu_compiler.compiled import Compiled
from memfit.estimation.gpu_compiler.module_text import read
from memfit.estimation.gpu_compiler.refusal import NotCompiled, Refused

# ResNet50 takes 10 to 20 s on two cores, EfficientNetV2-S a minute; what takes longer than this hangs.
_SECONDS = 600.0
# Autotuning runs kernels, and there is no GPU to run them on. The dump says what lives at the peak. The kernels'
# own code is thrown away, so it need not be good: a fifth of the time, and not a byte of difference (ResNet50).
_FLAGS = (
    "--xla_gpu_autotune_level=0 --xla_dump_hlo_as_text"
    " --xla_backend_optimization_level=0 --xla_gpu_disable_gpuasm_optimizations=true"
)
# Without autotuning Triton finds no tiles for some products (seen: ViT-B on an A100). cuBLAS takes any.
_NO_TRITON = "--xla_gpu_enable_triton_gemm=false"
# How many of the temporaries at the peak are kept; the rest are small.
LIVING = 400


def compile_hlo(hlo: bytes, target: str, *, timeout: float = _SECONDS) -> Compiled:
    """Compiles a serialized HLO module for a described GPU.

    Raises:
        Refused: If the compiler refuses the step or the target.
        NotCompiled: If it crashes or takes too long; it says which.
    """
    try:
        return _compile(hlo, target, _FLAGS, timeout)
    except Refused:
        return _compile(hlo, target, f"{_FLAGS} {_NO_TRITON}", timeout)


def _compile(hlo: bytes, target: str, flags: str, timeout: float) -> Compiled:
    with tempfile.TemporaryDirectory(prefix="memfit-xla-") as folder:
        environment = {
            "JAX_PLATFORMS": "cpu",  # its GPU plugin is loaded all the same, and looks for no driver
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "XLA_FLAGS": f"{flags} --xla_dump_to={folder}",
        }
        try:
            return run_isolated(
                compile_here,
                (hlo, target, folder),
                environment=environment,
                timeout=timeout,
                stderr=subprocess.DEVNULL,
            )
        except TimeoutError as error:
            raise NotCompiled(f"the compiler took more than {timeout:g} s") from error
        except ProcessDied as error:
            raise NotCompiled(f"the compiler crashed: {error}") from error
        except Exception as error:  # whatever XLA and JAX raise: each has its own type
            raise Refused(f"the compiler refused it ({_first_line(error)})") from error


def compile_here(hlo: bytes, target: str, folder: str) -> Compiled:
    """Does the work of `compile_hlo`, in the process for it."""
    begin = time.perf_counter()
    executable = jax_compiler.compile_for(jax_compiler.stablehlo(hlo), target)
    seconds = time.perf_counter() - begin
    stats = executable.get_compiled_memory_stats()
    module = read(executable.hlo_modules()[0].to_string())
    memory = memory_map.read(read_dump(folder, "-buffer-assignment"), read_dump(folder, "-live-range"))
    return Compiled(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        alias=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        living=module.living(memory.at(memory.fullest()))[:LIVING],
        kernels=module.kernels(),
        workspace=memory.more(module.convolutions()),
        buffers=module.parameters(),
        seconds=seconds,
    )


def read_dump(folder: str, kind: str) -> str:
    """Reads the largest dump whose name ends so, the step's: XLA's small modules have theirs too."""
    files = sorted(Path(folder).glob(f"*{kind}.txt"), key=os.path.getsize)
    return files[-1].read_text() if files else ""


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
