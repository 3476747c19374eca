"""What an item of a container keeps alive: bytes that would go with it, and with nothing else."""

import gc
import sys
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from memfit.compat.tf_graphs import is_eager_tensor

# An item of more objects than this is weighed only in part.
_MOST_OBJECTS = 1000
_NOT_ENTERED = (type, ModuleType, CodeType, BuiltinFunctionType)


def weigh_items(container: Any) -> tuple[int, bool]:
    """Returns the bytes of one item of a container, and whether it holds memory that Python cannot see.

    Two neighbours are compared: what both reach is shared, and goes with neither.
    """
    items = list(_last_two(container))
    if len(items) < 2:
        return 0, False
    earlier, _ = _reach(items[1])
    latest, opaque = _reach(items[0])
    return sum(size for number, size in latest.items() if number not in earlier), opaque


def size_of(thing: Any) -> int:
    """Returns the bytes of one object, with the data of an array or a tensor."""
    try:
        if isinstance(thing, np.ndarray):
            return int(thing.nbytes) + 112
        if is_eager_tensor(thing):
            return int(thing.dtype.size * (thing.shape.num_elements() or 0)) + 300
        return sys.getsizeof(thing)
    except Exception:  # an object that fails to say its size is counted as nothing
        return 0


def _last_two(container: Any) -> list[Any]:
    try:
        if isinstance(container, dict):
            return list(islice(reversed(container.items()), 2))
        if isinstance(container, set | frozenset):
            return list(islice(container, 2))
        return [container[-1], container[-2]]
    except Exception:  # changed meanwhile, or no sequence
        return []


def _reach(item: Any) -> tuple[dict[int, int], bool]:
    """What an item leads to, by id, with sizes; whether some of it is memory of TensorFlow's that has no size."""
    sizes: dict[int, int] = {}
    opaque = False
    to_do = [item]
    while to_do and len(sizes) < _MOST_OBJECTS:
        thing = to_do.pop()
        if id(thing) in sizes or isinstance(thing, _NOT_ENTERED):
            continue
        sizes[id(thing)] = size_of(thing)
        if isinstance(thing, np.ndarray):
            if thing.base is not None:
                sizes[id(thing)] = 112
                to_do.append(thing.base)
        elif is_eager_tensor(thing):
            opaque = opaque or thing.dtype.name in ("resource", "variant")
        elif isinstance(thing, FunctionType):
            to_do += [part for part in (thing.__closure__, thing.__defaults__, thing.__dict__) if part]
        elif isinstance(thing, MethodType):
            to_do.append(thing.__self__)
        elif not _is_namespace(thing):
            opaque = opaque or type(thing).__module__.startswith(("tensorflow", "keras"))
            to_do += gc.get_referents(thing)
    return sizes, opaque or bool(to_do)


def _is_namespace(thing: Any) -> bool:
    return type(thing) is dict and "__builtins__" in thing
