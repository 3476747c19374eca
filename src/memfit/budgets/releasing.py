"""Giving memory back: what clearing can really do, measured, and what only the end of the process can."""

import gc
import importlib
import sys
from dataclasses import dataclass
from typing import Any

import psutil

from memfit.budgets.budget import Count, read_count
from memfit.compat.tf_graphs import forget_gradients_of_dead_graphs
from memfit.compat.tf_runtime import is_initialised
from memfit.sizes import Size, to_plain
from memfit.tables import table


@dataclass(frozen=True, repr=False)
class Release:
    """What `release` did, in measured bytes.

    Attributes:
        device: The device whose allocator was asked, such as "GPU:0"; None where TensorFlow is not running.
        device_before: Bytes of live tensors on it before.
        device_after: Bytes of live tensors on it after.
        device_kept: Bytes the allocator has taken at its peak and holds free now: TensorFlow uses them again, but
            other programs get them only when this process ends.
        host_before: Resident host memory of this process before.
        host_after: Resident host memory of this process after.
    """

    device: str | None
    device_before: Size
    device_after: Size
    device_kept: Size
    host_before: Size
    host_after: Size

    def __repr__(self) -> str:
        rows: list[list[object]] = [["host (resident)", self.host_before, self.host_after, "the rest of it"]]
        if self.device is not None:
            kept = f"{self.device_kept} (peak, held for reuse)"
            rows.insert(0, [f"{self.device} (tensors)", self.device_before, self.device_after, kept])
        head = ["memory", "before", "after", "only ending the process returns"]
        return table(rows, head=head, right=[1, 2])

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as plain data, sizes in bytes."""
        return to_plain(self)


def release() -> Release:
    """Clears the Keras session and Python's garbage, and says what that returned.

    Tensors that a variable of yours still names stay, and so do models: delete those names first. A model that
    was trained in graph mode is then really gone, which `del`, `clear_session` and `gc.collect` alone do not
    achieve: TensorFlow's table of custom gradients holds the weights of every model it has traced. What the
    allocator once took from the device stays with the process for reuse; to have that back for others, run the
    training through `memfit.isolated`.
    """
    device = None
    if is_initialised():
        device = "GPU:0" if sys.modules["tensorflow"].config.list_physical_devices("GPU") else "CPU:0"
    host_before, before = _resident(), _count(device).current
    if "keras" in sys.modules:
        importlib.import_module("keras").backend.clear_session()
    forget_gradients_of_dead_graphs()
    gc.collect()
    after, peak = _count(device)
    return Release(device, before, after, Size(max(peak - after, 0)), host_before, _resident())


def _count(device: str | None) -> Count:
    count = None if device is None else read_count(device)
    return count or Count(Size(0), Size(0))


def _resident() -> Size:
    return Size(psutil.Process().memory_info().rss)
