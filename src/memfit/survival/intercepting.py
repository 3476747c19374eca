"""Intercepting a script's own calls of methods of Keras: `fit`, `evaluate` and `predict` of models, updates."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

# What goes through memfit of a script that knows nothing of it.
ROUTED = ("fit", "evaluate", "predict")


def intercept(
    owner: Any,
    name: str,
    handle: Callable[..., Any],
    decorate: Callable[[Any], Any] = lambda function: function,
) -> Callable[[], None]:
    """Lets every call of a method of Keras's models or optimizers go to a handler.

    Args:
        owner: `keras.Model` or `keras.optimizers.Optimizer`.
        name: The method's name.
        handle: Called with Keras's own method, the object, and the other arguments by name.
        decorate: Decorates what is put in the method's place.

    Returns:
        What puts the method back.
    """
    original = getattr(owner, name)
    signature = inspect.signature(original)
    own = name in vars(owner)

    @functools.wraps(original)
    def intercepted(this: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(this, *args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        del arguments["self"]
        return handle(original, this, **arguments)

    def restore() -> None:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)  # it is inherited, as `Model.fit` is from a trainer

    setattr(owner, name, decorate(intercepted))
    return restore


def call_memfit(name: str, model: Any, arguments: dict[str, Any], **asked: Any) -> Any:
    """Calls memfit's function of a name with the arguments of Keras's.

    Args:
        **asked: What memfit's `fit` is asked for beside them.
    """
    from memfit.scaling import fitting
    from memfit.training.running import stock_runner

    if name == "fit":
        return fitting.fit(model, **arguments, **asked)
    with stock_runner():
        return getattr(fitting, name)(model, **arguments)
