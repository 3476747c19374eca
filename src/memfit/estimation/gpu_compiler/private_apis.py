"""The private APIs of this package. Checked with Keras 3.15.1, TensorFlow 2.21.0, jax and jaxlib 0.10.2.

jaxlib carries the XLA compiler that TensorFlow has inside, in another version, with a client that compiles for a
GPU described in a text instead of one that is there.
"""

import contextlib
from importlib import import_module
from typing import Any


def build(model: Any, batch: Any) -> None:
    """Makes the variables that Keras makes before its first step, the metrics' and the optimizer's included."""
    # A custom step may have no use for this or fail in it; then the step makes its variables itself.
    with contextlib.suppress(Exception):
        model._symbolic_build(data_batch=batch)


def layer_names(model: Any) -> tuple[str, ...]:
    """Returns the names of all layers, nested ones included."""
    return tuple(layer.name for layer in model._flatten_layers() if layer is not model)


def why_not_xla(model: Any) -> str | None:
    """Says why Keras would not have XLA compile the model's step on a GPU, or None where it would."""
    from keras.src.trainers.trainer import model_supports_jit

    for layer in model._flatten_layers():
        if not layer.supports_jit:
            return f"{layer.name} forbids it"
        if _runs_on_cudnn(layer):
            return f"{layer.name} runs on cuDNN there; use_cudnn=False would let XLA compile it"
    return None if model_supports_jit(model) else "it is switched off"


def loops(model: Any) -> list[str]:
    """Names the recurrent layers that loop over time steps, rather than run on cuDNN or step by step."""
    import keras

    return [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.RNN) and not layer.unroll and not _runs_on_cudnn(layer)
    ]


def _runs_on_cudnn(layer: Any) -> bool:
    """Whether a recurrent layer takes cuDNN's kernel on a GPU; without one here, Keras does not say so itself."""
    import keras

    if not isinstance(layer, keras.layers.LSTM | keras.layers.GRU) or layer.use_cudnn not in (True, "auto"):
        return False
    rnn = import_module("keras.src.backend.tensorflow.rnn")  # its package has a function of the same name
    cell = layer.cell
    facts = (cell.activation, cell.recurrent_activation, layer.unroll, cell.use_bias)
    if isinstance(layer, keras.layers.LSTM):
        return bool(rnn._do_lstm_arguments_support_cudnn(*facts))
    return bool(rnn._do_gru_arguments_support_cudnn(*facts, cell.reset_after))


def canonical(hlo: bytes) -> bytes:
    """Returns a serialized HLO module with its maps in order, so that equal modules have equal bytes."""
    from tensorflow.compiler.xla.service import hlo_pb2

    module = hlo_pb2.HloModuleProto()
    module.ParseFromString(hlo)
    serialized: bytes = module.SerializeToString(deterministic=True)
    return serialized


def stablehlo(hlo: bytes) -> Any:
    """Returns the module of a serialized HLO proto, in the form that the compile-only client takes."""
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
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
    from jax._src.lib import _jax, xla_client
    from jax.experimental.topologies import get_topology_desc

    topology = get_topology_desc("memfit", "cuda", target_config=target, topology="1x1x1")
    device = topology.devices[0]
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.zeros((1, 1), "int32"))
    return device.client.compile(module, _jax.DeviceList((device,)), options)
