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
    from memfit.budgets.gpu_table import gpu

    specs = gpu("A100").specs
    assert specs is not None
    executable = jax_compiler.compile_for(jax_compiler.stablehlo(_hlo()), specs.target)
    assert executable.get_compiled_memory_stats().argument_size_in_bytes == 8
