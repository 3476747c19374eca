"""Seeds for what a script draws without one: the same numbers in every process of a run."""

import functools
import itertools
import random
from typing import Any

from memfit.survival.scripts import after_import


def seed_what_is_unseeded(seed: int) -> None:
    """Seeds Python's and NumPy's random numbers and shuffled datasets, wherever the script sets no seed itself."""
    random.seed(seed)
    after_import("numpy", lambda numpy: numpy.random.seed(seed))
    after_import("tensorflow", lambda tensorflow: _seed_shuffles(tensorflow, seed))


def _seed_shuffles(tensorflow: Any, seed: int) -> None:
    """Gives every `Dataset.shuffle` without a seed one that the next process will give it as well.

    Not a global seed: with one, random ops in a `map` would repeat themselves in every epoch.
    """
    dataset, numbers = tensorflow.data.Dataset, itertools.count(seed + 1)
    original = dataset.shuffle

    @functools.wraps(original)
    def shuffle(self: Any, buffer_size: Any, seed: Any = None, *args: Any, **kwargs: Any) -> Any:
        from memfit.compat.tf_runtime import global_seed

        if seed is None and global_seed() is None:
            seed = next(numbers)
        return original(self, buffer_size, seed, *args, **kwargs)

    dataset.shuffle = shuffle
