"""jaxlib's private compile-only client for GPUs that are not there.

Checked with JAX 0.10.2, the one version that memfit[gpu-compiler] takes.
"""

from typing import Any


def stablehlo(hlo: bytes) -> Any:
    """Returns the module of a serialized HLO proto, in the form that the compile-only client takes."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(_jaxlib().mlir.hlo_to_stablehlo(hlo))
        copies: list[Any] = []

        def visit(op: Any) -> Any:
            # TensorFlow copies every result; the client knows no such op, and XLA copies where it has to.
            if op.operation.name == "mhlo.copy":
                op.operation.result.replace_all_uses_with(op.operation.operands[0])
                copies.append(op.operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        for op in copies:
            op.erase()
        return module


def compile_for(module: Any, target: str) -> Any:
    """Compiles a module for the GPU that `target`, a GpuTargetConfigProto as text, describes."""
    import numpy as np
    from jax._src.lib import xla_client
    from jax.experimental.topologies import get_topology_desc

    topology = get_topology_desc("memfit", "cuda", target_config=target, topology="1x1x1")
    device = topology.devices[0]
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.zeros((1, 1), "int32"))
    return device.client.compile(module, _jaxlib().DeviceList((device,)), options)


def _jaxlib() -> Any:
    from jax._src.lib import _jax

    return _jax
