"""What TensorFlow's allocator says it has handed out on a device.

Not every allocator counts: a CPU's does in an arena and, by chance, with oneDNN, but not without either.
"""

import sys
from dataclasses import dataclass

from memfit.sizes import Size


@dataclass(frozen=True)
class Count:
    """Bytes in use now, and the most since the counter was last reset."""

    current: Size
    peak: Size


def read_count(device: str) -> Count | None:
    """Returns the count of a device such as "GPU:0"; None where its allocator does not count.

    TensorFlow has to be imported, and is initialised by this.
    """
    try:
        info = sys.modules["tensorflow"].config.experimental.get_memory_info(device)
    except ValueError:
        return None
    return Count(Size(int(info["current"])), Size(int(info["peak"])))
