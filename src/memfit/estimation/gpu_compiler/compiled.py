"""What the compiler says about one step at one batch size."""

from dataclasses import asdict, dataclass
from typing import Any


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

    def to_json(self) -> dict[str, Any]:
        """Returns plain data that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Compiled":
        """Reads what `to_json` returned."""
        living = tuple(Living(**item) for item in data["living"])
        kernels = tuple(Kernel(**item) for item in data["kernels"])
        return cls(**{**data, "living": living, "kernels": kernels})
