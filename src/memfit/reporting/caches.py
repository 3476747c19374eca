"""The list of disk caches (`memfit cache ls`)."""

import time
from collections.abc import Sequence
from pathlib import Path

from memfit.data.disk_cache import CacheEntry
from memfit.estimation.cache import Remembered
from memfit.sizes import Size
from memfit.tables import table


def describe_caches(entries: Sequence[CacheEntry], limit: int, folder: Path) -> str:
    """Returns the caches of decoded images as a table, with their total.

    Args:
        entries: The caches.
        limit: The bytes that all caches together may take.
        folder: Where they are.
    """
    rows = [
        [entry.key, entry.size, f"{entry.kept:,} of {entry.images:,}", describe_use(entry), entry.source]
        for entry in entries
    ]
    total = Size(sum(entry.size for entry in entries))
    lines = [table(rows, head=["key", "size", "images", "used", "of"], right=[1, 2])] if rows else []
    return "\n".join([*lines, f"{len(entries)} caches, {total} of at most {Size(limit)}, in {folder}"])


def describe_estimates(entries: Sequence[Remembered]) -> str:
    """Returns the estimates and plans that were made before as a table."""
    rows = [[entry.key, entry.size, entry.about, describe_age(time.time() - entry.used)] for entry in entries]
    return table(rows, head=["key", "size", "estimate or plan", "used"], right=[1])


def describe_use(entry: CacheEntry) -> str:
    """Returns when a cache was last used: "now", "just now", "3 hours ago"."""
    return "now" if entry.in_use else describe_age(time.time() - entry.used)


def describe_age(seconds: float) -> str:
    """Returns a time in the past in its largest unit: "just now", "5 minutes ago", "3 days ago"."""
    for name, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name} ago"
    return "just now"
