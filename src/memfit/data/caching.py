"""Where decoded images are kept: decided from their real number and size, the budget, and the room on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memfit.data.disk_cache import cache_folder, cache_limit, open_cache
from memfit.data.sizing import Sizing
from memfit.data.stores import MemoryStore, Store
from memfit.errors import InvalidInput
from memfit.sizes import Size

_WAYS = ("auto", "memory", "disk")


def choose_store(
    cache: str | Path | None, paths: Sequence[str], shape: tuple[int, ...], sizing: Sizing
) -> tuple[Store | None, str]:
    """Returns where to keep decoded images, and the reason in words.

    Raises:
        InvalidInput: If a way that was asked for by name has no room.
    """
    total = Size(len(paths) * int(np.prod(shape)))
    if cache is None:
        return None, "none"
    if isinstance(cache, str) and cache in _WAYS:
        folder = cache_folder()
    elif isinstance(cache, Path) or "/" in cache:
        folder, cache = Path(cache), "disk"
    else:
        raise InvalidInput(
            f"cache is {', '.join(map(repr, _WAYS))}, a folder, or None",
            received=cache,
            remedy='Or "./folder"',
        )
    if cache == "memory" and not sizing.fits(len(paths), int(np.prod(shape))):
        raise InvalidInput(
            f"{len(paths):,} decoded images take {total} besides {sizing.working} of working memory, "
            f"which must fit the pipeline's budget of {sizing.memory}",
            remedy='Pass cache="auto", a larger memory, or a smaller size',
        )
    if cache in ("auto", "memory") and sizing.fits(len(paths), int(np.prod(shape))):
        return MemoryStore(len(paths), shape), f"in RAM, {total}, which fits"
    store = open_cache(folder, paths, shape, _settings(shape))
    if store is not None:
        return store, f"on disk, {total} in {folder}"
    limit = Size(cache_limit(folder))
    if cache == "disk":
        raise InvalidInput(
            f"A disk cache of {total} must fit the {limit} that caches in {folder} may take",
            remedy="Set MEMFIT_CACHE_LIMIT, remove old ones with: memfit cache rm, or pass another folder",
        )
    return None, f"none: {total} fit neither RAM ({sizing.memory}) nor disk ({limit})"


def _settings(shape: tuple[int, ...]) -> dict[str, Any]:
    """Everything besides the files that the pixels depend on: decoders change with TensorFlow."""
    import tensorflow as tf

    return {"shape": list(shape), "tensorflow": tf.__version__.rsplit(".", 1)[0]}
