"""What names a model for the cache: everything that an estimate of it depends on, its code included."""

import hashlib
import io
import sys
import types
from pathlib import Path
from typing import Any

import cloudpickle

from memfit.compat.keras_layers import NUMBER_ATTRIBUTES, SEED_ATTRIBUTES
from memfit.estimation.recording.sending import Pickler, run_with_deep_stack

# Packages whose versions are part of every key.
_KNOWN = ("tensorflow", "keras", "numpy", "memfit", "absl", "builtins", "ml_dtypes", "tree", "optree")
# They say nothing of memory, and differ in every run.
_LEFT_OUT = frozenset({*SEED_ATTRIBUTES, *NUMBER_ATTRIBUTES})


def fingerprint(*parts: Any) -> str | None:
    """Returns a text that is another one for any other model, data shape or way to compute the step.

    Code that is not of a known package is part of it: the bytecode of its functions, with what they close over and
    the globals they name.

    Args:
        parts: A model, and whatever else an estimate depends on.

    Returns:
        The text, or None where something of that cannot be told.
    """
    try:
        return hashlib.sha256(run_with_deep_stack(_digest, parts)).hexdigest()
    except Exception:  # whatever pickling raises: then nothing is kept
        return None


def _digest(parts: Any) -> bytes:
    stream = io.BytesIO()
    pickler = _KeyPickler(stream)
    pickler.dump(parts)
    return stream.getvalue() + pickler.order_of_variables()


class _KeyPickler(Pickler):
    """Writes what has to be equal, where `Pickler` writes what makes an equal object."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._seen: set[int] = set()
        self._held: list[Any] = []  # so that no other object gets the number of one that is gone

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.ModuleType):
            return _token, ("module", obj.__name__, None if _is_known(obj.__name__) else _contents(obj))
        if isinstance(obj, type | types.FunctionType):
            return self._code(obj)
        if isinstance(obj, set | frozenset):
            return _token, ("set", type(obj).__name__, sorted(map(repr, obj)))
        if hasattr(obj, "stored_ids"):
            return _token, ("tracker",)  # Keras's; it knows by their numbers what the layer's own lists hold
        reduced = super().reducer_override(obj)
        if isinstance(reduced, tuple) and len(reduced) == 6 and isinstance(reduced[2], dict):
            return (*reduced[:2], _without_numbers(reduced[2]), *reduced[3:])
        if reduced is NotImplemented and _is_plain_keras(obj):
            return _token, ("object", type(obj)), _without_numbers(vars(obj))
        return reduced

    def _code(self, obj: Any) -> Any:
        name = (obj.__module__, obj.__qualname__)
        if obj is _token:
            return NotImplemented
        known = _is_known(obj.__module__ or "") and "<" not in obj.__qualname__
        if known or id(obj) in self._seen:
            return _token, ("name", *name)
        self._seen.add(id(obj))
        self._held.append(obj)
        if isinstance(obj, types.FunctionType):
            cells = [cell.cell_contents for cell in obj.__closure__ or ()]
            names = sorted(_names(obj.__code__))
            used = [(key, obj.__globals__[key]) for key in names if key in obj.__globals__]
            facts = (_bytecode(obj.__code__), obj.__defaults__, obj.__kwdefaults__, cells, used)
            return _token, ("function", *name, facts)
        members = [(key, _member(value)) for key, value in sorted(vars(obj).items()) if key not in _NO_FACTS]
        return _token, ("class", *name, obj.__bases__, members)


def _is_plain_keras(obj: Any) -> bool:
    """Whether an object of Keras's is pickled as its attributes, as initializers and nodes are."""
    cls: Any = type(obj)
    return (
        cls.__module__.startswith("keras.")
        and cls.__reduce_ex__ is object.__reduce_ex__
        and hasattr(obj, "__dict__")
    )


def _without_numbers(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in _LEFT_OUT}


_NO_FACTS = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__"})


def _member(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return (type(value).__name__, value.__func__)
    if isinstance(value, property):
        return ("property", value.fget, value.fset)
    return value


def _bytecode(code: types.CodeType) -> tuple[Any, ...]:
    constants = tuple(
        _bytecode(constant)
        if isinstance(constant, types.CodeType)
        else (type(constant).__name__, sorted(map(repr, constant)))
        if isinstance(constant, frozenset)
        else constant
        for constant in code.co_consts
    )
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)


def _names(code: types.CodeType) -> set[str]:
    """The globals that a function may name, those of functions inside of it included."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _is_known(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _KNOWN or (top in sys.stdlib_module_names and top != "__main__")


def _contents(module: types.ModuleType) -> str:
    """A hash of a module's file and of every other file of its owner's that is loaded, which it may call."""
    file = getattr(module, "__file__", None)
    if file is None:
        raise ValueError("A module without a file may have changed")
    digest = hashlib.sha256()
    for other in sorted(_loaded_files()):
        digest.update(other.encode() + b"\0" + Path(other).read_bytes())
    return digest.hexdigest()


def _loaded_files() -> set[str]:
    """The files of all loaded modules that are not of a known package."""
    return {
        str(module.__file__)
        for name, module in list(sys.modules.items())
        if not _is_known(name) and str(getattr(module, "__file__", None) or "").endswith(".py")
    }


def _token(*facts: Any) -> Any:
    """Stands in what is written for an object; nothing is ever read back."""
    raise cloudpickle.pickle.UnpicklingError("A fingerprint is not read back")
