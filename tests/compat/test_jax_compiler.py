"""Canaries of jaxlib's compile-only client; they run where memfit[gpu-compiler] is installed."""

import pytest

pytest.importorskip("jax", reason="memfit[gpu-compiler] is not installed: make test-gpu-compiler")

from compat.canaries import canary
from memfit.compat import jax_compiler


def _hlo() -> bytes:
    import tensorflow as tf

    step = tf.function(lambda x: x + 1.0, jit_compile=True)
    return step.experimental_get_compiler_ir(tf.ones([2]))(stage="hlo_serialized")


@canary("jax_compiler.stablehlo", "mlir.make_ir_context", "ir", "_jax.mlir.hlo_to_stablehlo", of="jax")
def test_hlo_becomes_a_module_without_copies():
    assert "mhlo.copy" not in str(jax_compiler.stablehlo(_hlo()))


@canary("jax_compiler.compile_for", "xla_client.CompileOptions", "_jax.DeviceList", of="jax")
def test_a_module_is_compiled_for_a_gpu_that_is_not_there():
    from memfit.budgets.isolation import run_isolated

    # As `memfit.estimation.gpu_compiler` starts it: JAX's GPU plugin must look for no driver.
    assert run_isolated(_compile_for_a100, (), environment={"JAX_PLATFORMS": "cpu"}) == 8


def _compile_for_a100() -> int:
    from memfit.budgets.gpu_table import gpu
    from memfit.compat import jax_compiler

    executable = jax_compiler.compile_for(jax_compiler.stablehlo(_hlo()), gpu("A100 40GB").specs.target)
    return executable.get_compiled_memory_stats().argument_size_in_bytes
