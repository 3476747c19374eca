"""Intercepting a script's own calls of `fit`, `evaluate` and `predict` of its Keras models."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

# Called with Keras's own method, the model, and all other arguments by name.
Handler = Callable[..., Any]


def intercept(model_class: Any, name: str, handle: Handler) -> Callable[[], None]:
    """Lets every call of a method of Keras models go to a handler.

    Args:
        model_class: `keras.Model`.
        name: The method's name.
        handle: Called with Keras's own method, the model, and the other arguments by name.

    Returns:
        What puts the method back.
    """
    original = getattr(model_class, name)
    signature = inspect.signature(original)
    own = name in vars(model_class)

    @functools.wraps(original)
    def intercepted(model: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(model, *args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        del arguments["self"]
        return handle(original, model, **arguments)

    def restore() -> None:
        if own:
            setattr(model_class, name, original)
        else:
            delattr(model_class, name)  # `Model` inherits it from its trainer

    setattr(model_class, name, intercepted)
    return restore
