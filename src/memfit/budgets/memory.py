"""One kind of memory that is there: its total, what is free of it, and who says so."""

from dataclasses import asdict, dataclass
from typing import Any

from memfit.sizes import Size


@dataclass(frozen=True)
class Memory:
    """The memory of one device or of the host.

    Attributes:
        name: What it belongs to, such as "GPU:0 NVIDIA A10G", "arena" or "host".
        total: All of it that this process could use.
        free: What of that is not in use now.
        source: Where the two figures come from.
    """

    name: str
    total: Size
    free: Size
    source: str

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain data, sizes in bytes."""
        return {key: int(value) if isinstance(value, Size) else value for key, value in asdict(self).items()}
