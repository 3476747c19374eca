"""Leading a script's own calls of Keras through memfit, in the process that runs it."""

import functools
import inspect
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LOG = logging.getLogger("memfit")


def lead_through_memfit(keras: Any, settings: dict[str, Any]) -> None:
    """Lets `fit`, `evaluate` and `predict` of every Keras model go through memfit.

    Args:
        keras: The module, just imported.
        settings: What the supervisor passes to its child.
    """
    if keras.config.backend() != "tensorflow":
        _LOG.warning("Keras runs on %s here: memfit leaves it as it is.", keras.config.backend())
        return
    from memfit.survival.supervision import Supervision, supervise_here

    supervision = Supervision(
        Path(settings["directory"]), settings["seed"], settings["shortest"], tighten=settings["tighten"]
    )
    supervise_here(supervision)
    for name in ("fit", "evaluate", "predict"):
        original = getattr(keras.Model, name)
        supervision.originals[name] = original
        own = {"memory": settings["memory"], "allow": settings["allow"]} if name == "fit" else {}
        setattr(keras.Model, name, _led(name, original, own))


def _led(name: str, original: Callable[..., Any], own: dict[str, Any]) -> Callable[..., Any]:
    from memfit.survival.supervision import current

    signature = inspect.signature(original)

    @functools.wraps(original)
    def led(model: Any, *args: Any, **kwargs: Any) -> Any:
        supervision = current()
        if supervision is None:
            return original(model, *args, **kwargs)
        from memfit.training.evaluating import evaluate
        from memfit.training.fitting import fit
        from memfit.training.predicting import predict

        bound = signature.bind(model, *args, **kwargs).arguments
        given = {**bound.pop("kwargs", {}), **bound}
        given.pop("self")
        if name == "fit":
            return fit(model, **given, **own)
        supervision.inside = True
        try:
            return (evaluate if name == "evaluate" else predict)(model, **given)
        finally:
            supervision.inside = False

    return led


def seed_shuffles(tensorflow: Any, seed: int) -> None:
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
