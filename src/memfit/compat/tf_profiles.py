"""TensorFlow's private formats: what its profiler and XLA write, as protos that ship with it.

Checked with TensorFlow 2.19.0 and 2.21.0.
"""

from typing import Any

# The names of the allocator's events in a profile, and of the figures of an event that are read.
ALLOCATION, DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
ALLOCATION_FIGURES = (
    "allocator_name",
    "addr",
    "requested_bytes",
    "allocation_bytes",
    "tf_op",
    "region_type",
    "shape",
)


def read_xspace(data: bytes) -> Any:
    """Reads a profile."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(data)
    return space


def read_hlo(data: bytes) -> Any:
    """Reads what XLA made of a function, with its buffer assignment."""
    module = _hlo_protos().HloProto()
    module.ParseFromString(data)
    return module


def canonical(hlo: bytes) -> bytes:
    """Returns a serialized HLO module with its maps in order, so that equal modules have equal bytes."""
    module = _hlo_protos().HloModuleProto()
    module.ParseFromString(hlo)
    serialized: bytes = module.SerializeToString(deterministic=True)
    return serialized


def _hlo_protos() -> Any:
    from tensorflow.compiler.xla.service import hlo_pb2

    return hlo_pb2
