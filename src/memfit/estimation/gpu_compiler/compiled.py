"""What the compiler says about one step at one batch size, kept on disk; or why it says nothing."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memfit.budgets.device_specs import Specs
from memfit.data import disk_cache
from memfit.errors import MemfitError

# Changes whenever figures are read from a compiled module in another way.
_FORM = "3"


class NotCompiled(MemfitError, RuntimeError):
    """A step could not be compiled for a GPU; the message is a clause that says why."""


class Refused(NotCompiled):
    """The compiler itself said no, to the step or to the GPU."""


@dataclass(frozen=True)
class Parts:
    """What the arguments of a step are made of, and the names its ops go by.

    Attributes:
        weights: Bytes of the model's variables.
        optimizer: Bytes of the optimizer's.
        sample: Bytes of one sample, its targets and its weight.
        layers: Names of the layers, nested ones included.
        optimizer_name: Name of the optimizer.
    """

    weights: int
    optimizer: int
    sample: int
    layers: tuple[str, ...]
    optimizer_name: str


@dataclass(frozen=True)
class Kernel:
    """Kernels that compute and move the same: operations, bytes, the type they multiply, and how many there are."""

    flops: int
    bytes: int
    dtype: str
    count: int = 1


@dataclass(frozen=True)
class Living:
    """A temporary that is alive at the peak: its bytes, the TensorFlow op it belongs to, and its shape."""

    bytes: int
    op: str
    shape: str


@dataclass(frozen=True)
class Compiled:
    """The compiler's figures, in bytes.

    Attributes:
        arguments: Weights, optimizer state, metrics and the batch: what the step gets.
        outputs: What it gives back.
        alias: The part of the outputs that is written over the arguments: updated weights are.
        temporaries: Everything in between; TensorFlow allocates it as one block.
        living: The largest temporaries at the peak.
        kernels: What a step runs.
        workspace: How much more there would be, if each convolution needed its tensors once more while it runs.
        buffers: How many arguments there are.
        seconds: How long it took to compile.
    """

    arguments: int
    outputs: int
    alias: int
    temporaries: int
    living: tuple[Living, ...]
    kernels: tuple[Kernel, ...]
    workspace: int
    buffers: int
    seconds: float

    @property
    def peak(self) -> int:
        """Bytes of the device memory that a step takes in all."""
        return self.arguments + self.outputs - self.alias + self.temporaries

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Compiled":
        """Reads what `asdict` made plain data of."""
        living = tuple(Living(**item) for item in data["living"])
        kernels = tuple(Kernel(**item) for item in data["kernels"])
        return cls(**{**data, "living": living, "kernels": kernels})


def least_seconds(kernels: Iterable[Kernel], specs: Specs) -> float:
    """Returns the roofline time of a step's kernels, one after the other; starting them is not counted.

    Each runs as fast as the GPU multiplies or its memory delivers.
    """
    bandwidth = specs.bandwidth_gb_s * 1e9
    return sum(
        kernel.count * max(kernel.flops / specs.flops(kernel.dtype), kernel.bytes / bandwidth)
        for kernel in kernels
    )


def cache_folder() -> Path:
    """Returns the folder of the kept figures."""
    return disk_cache.cache_folder() / "gpu-compiler"


def load_or_compile(hlo: bytes, target: str, version: str, compile_step: Callable[[], Compiled]) -> Compiled:
    """Returns the kept figures of a module, target and compiler version, or compiles and keeps them.

    A compilation takes seconds to minutes, its figures a few kilobytes.
    """
    key = hashlib.sha256("\0".join((_FORM, version, target)).encode() + b"\0" + hlo).hexdigest()
    file = cache_folder() / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # missing, or damaged: compile again
        return Compiled.from_json(json.loads(file.read_text()))
    compiled = compile_step()
    with contextlib.suppress(OSError):  # a home that cannot be written to costs time, not the answer
        disk_cache.write_whole(file, json.dumps(asdict(compiled)).encode())
    return compiled
