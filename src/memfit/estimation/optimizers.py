"""The optimizers of a model: its own, and those that a custom `train_step` keeps beside it."""

from collections.abc import Iterator, Mapping
from typing import Any


def optimizers_of(model: Any) -> list[Any]:
    """Returns the optimizers that a training step may use, the one given to `compile()` first, each once."""
    import keras

    optimizers = _all_in([model.optimizer, *vars(model).values()], keras.optimizers.Optimizer)
    return list({id(optimizer): optimizer for optimizer in optimizers}.values())


def is_alone(model: Any) -> bool:
    """Whether the optimizer given to `compile()` is the only one.

    Where it is not, as in a GAN, it may be Keras's default, which no step ever uses.
    """
    return len(optimizers_of(model)) == 1


def _all_in(values: Any, kind: type) -> Iterator[Any]:
    for value in values:
        if isinstance(value, kind):
            yield value
        elif isinstance(value, Mapping):
            yield from _all_in(value.values(), kind)
        elif isinstance(value, list | tuple):
            yield from _all_in(value, kind)
