"""TensorFlow's private functions that draw random numbers from a seed.

Checked with TensorFlow 2.19.0 and 2.21.0.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from memfit.compat.tf_graphs import Tensor

# Each of their numbers takes the same part of a Philox counter's output, whatever the others do.
_BY_COUNTER = ("stateless_random_uniform_v2", "stateless_random_normal_v2", "stateless_random_uniform_int_v2")
_OTHERS = ("stateless_truncated_normal_v2", "stateless_random_gamma_v3", "stateless_shuffle")
_FROM_SEEDS = ("stateless_multinomial", "stateless_random_binomial", "stateless_random_poisson")


class Draw(NamedTuple):
    """A call that draws random numbers.

    Attributes:
        arguments: Its arguments by name; `counter` or `seed` is among them.
        by_counter: Whether its n-th number depends on the counter and n alone, so that some can be drawn apart.
        call: Draws with such arguments.
    """

    arguments: dict[str, Any]
    by_counter: bool
    call: Callable[..., Tensor]


@contextmanager
def draws_replaced(replace: Callable[[Draw], Tensor]) -> Iterator[None]:
    """Lets `replace` return the numbers of all draws from seeds that this thread makes or traces meanwhile."""
    from tensorflow.python.ops import gen_stateless_random_ops, gen_stateless_random_ops_v2

    functions = [(gen_stateless_random_ops_v2, name) for name in (*_BY_COUNTER, *_OTHERS)]
    functions += [(gen_stateless_random_ops, name) for name in _FROM_SEEDS]
    own = [getattr(module, name) for module, name in functions]
    thread = threading.get_ident()

    def replacement(function: Any, by_counter: bool) -> Any:
        signature = inspect.signature(function)

        @functools.wraps(function)  # so that one replacement within another knows the arguments' names
        def draw(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return function(*args, **kwargs)
            return replace(Draw(dict(signature.bind(*args, **kwargs).arguments), by_counter, function))

        return draw

    for (module, name), function in zip(functions, own, strict=True):
        setattr(module, name, replacement(function, name in _BY_COUNTER))
    try:
        yield
    finally:
        for (module, name), function in zip(functions, own, strict=True):
            setattr(module, name, function)
