"""Compiling a step for a GPU, in a process that has JAX and no TensorFlow."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from memfit.budgets.isolation import run_isolated
from memfit.compat import jax_compiler
from memfit.errors import InvalidInput, ProcessDied
from memfit.estimation.gpu_compiler import memory_map
from memfit.estimation.gpu_compiler.compiled import Compiled, NotCompiled, Refused
from memfit.estimation.gpu_compiler.module_text import read

_PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt")
_INSTALL = "pip install 'memfit[gpu-compiler]'"
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
_LIVING = 400


def compiler_version() -> str:
    """Returns the compiler's version, such as "jaxlib 0.10.2"; nothing of it is imported to know.

    Raises:
        NotCompiled: If it is not installed, or its parts do not belong together.
    """
    try:
        versions = {package: version(package) for package in _PACKAGES}
    except PackageNotFoundError:
        raise NotCompiled(
            f"the GPU compiler is not installed; {_INSTALL} would give the compiler's own figures for this GPU"
        ) from None
    if len(set(versions.values())) > 1:
        parts = ", ".join(f"{package} {number}" for package, number in versions.items())
        raise NotCompiled(f"the compiler's packages have different versions ({parts}); {_INSTALL}")
    return f"jaxlib {versions['jaxlib']}"


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
            "XLA_FLAGS": f"{flags} --xla_dump_to={folder}",
        }
        return run_compiler(
            compile_here, (hlo, target, folder), environment, "the compiler", refusal=Refused, timeout=timeout
        )


def run_compiler(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    environment: dict[str, str],
    who: str,
    *,
    refusal: type[NotCompiled] = NotCompiled,
    timeout: float = _SECONDS,
) -> Any:
    """Runs what compiles in a process of its own, and says why where nothing comes of it.

    Args:
        function: What compiles.
        environment: Environment variables beside the caller's.
        who: The subject of the sentence that says why.
        refusal: What to raise for whatever it raises: XLA, JAX, TensorFlow and a model's code have their own types.
        timeout: Seconds after which it is ended.

    Raises:
        NotCompiled: If it fails, crashes or takes too long.
    """
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    try:
        return run_isolated(
            function, args, environment=environment, timeout=timeout, stderr=subprocess.DEVNULL
        )
    except TimeoutError as error:
        raise NotCompiled(f"{who} took more than {timeout:g} s") from error
    except ProcessDied as error:
        raise NotCompiled(f"{who} crashed: {error}") from error
    except (NotCompiled, InvalidInput):
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise refusal(f"{who} refused it ({reason})") from error


def compile_here(hlo: bytes, target: str, folder: str) -> Compiled:
    """Does the work of `compile_hlo`, in the process for it."""
    begin = time.perf_counter()
    executable = jax_compiler.compile_for(jax_compiler.stablehlo(hlo), target)
    seconds = time.perf_counter() - begin
    stats = executable.get_compiled_memory_stats()
    return Compiled(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        alias=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        seconds=seconds,
        **read_module(executable.hlo_modules()[0].to_string(), folder),
    )


def read_module(text: str, folder: str) -> dict[str, Any]:
    """Returns the figures of a compiled step that are in its module's text and in what XLA has dumped beside it."""
    module = read(text)
    memory = memory_map.read(read_dump(folder, "-buffer-assignment"), read_dump(folder, "-live-range"))
    return {
        "living": module.living(memory.at(memory.fullest()))[:_LIVING],
        "kernels": module.kernels(),
        "workspace": memory.more(module.convolutions()),
        "buffers": module.parameters(),
    }


def read_dump(folder: str, kind: str) -> str:
    """Reads the largest dump whose name ends so, the step's: XLA's small modules have theirs too."""
    files = sorted(Path(folder).glob(f"*{kind}.txt"), key=os.path.getsize)
    return files[-1].read_text() if files else ""
