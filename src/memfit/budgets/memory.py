"""One kind of memory that is there: its total, what is free of it, and who says so."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from memfit.sizes import Size


class Kind(StrEnum):
    """What a memory belongs to."""

    GPU = "gpu"
    ARENA = "arena"
    HOST = "host"
    CONTAINER = "container"


@dataclass(frozen=True)
class Memory:
    """The memory of one device or of the host.

    Attributes:
        name: What it belongs to, such as "GPU:0 NVIDIA A10G", "arena" or "host".
        total: All of it that this process could use.
        free: What of that is not in use now.
        source: Where the two figures come from.
        kind: Whether it is a GPU's, the arena's, the host's, or a container's share of the host's (a cgroup).
    """

    name: str
    total: Size
    free: Size
    source: str
    kind: Kind = Kind.HOST

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain data, sizes in bytes."""
        return {key: int(value) if isinstance(value, Size) else value for key, value in asdict(self).items()}
