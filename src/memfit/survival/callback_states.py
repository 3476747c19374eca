"""The states of callbacks: what early stopping, plateaus, histories and the like have seen so far.

A callback's state is what its attributes hold, but for the model and what cannot be pickled (open files, writers),
which its own `on_train_begin` makes anew. Attributes that are large arrays and have not changed since the training
began, such as a validation set, are left out too.
"""

import pickle
import types
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from memfit.compat.keras_training import CALLBACK_MODEL
from memfit.scaling.callbacks import is_of_rank_0

_NOT_STATE = {*CALLBACK_MODEL, "params"}
_LARGE = 2**20
_MADE_ANEW = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type)


class CallbackStates:
    """Saves and puts back the states of the callbacks of one training."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        """Looks at the callbacks as they are before the training."""
        self.callbacks = list(callbacks)
        self._before = [{name: _mark(value) for name, value in _attributes(cb)} for cb in self.callbacks]

    def list_unsaved(self) -> list[str]:
        """Names the state that cannot be saved, as "Callback.attribute"; Keras's own callbacks make theirs anew."""
        return [
            f"{type(callback).__name__}.{name}"
            for callback in self.callbacks
            if not type(callback).__module__.startswith("keras.")
            for name, value in _attributes(callback)
            if not isinstance(value, _MADE_ANEW) and _pickle(value) is None
        ]

    def save(self) -> list[dict[str, Any]]:
        """Returns the states, one for each callback; attributes as pickles of their own."""
        return [
            {
                "class": type(callback).__qualname__,
                "attributes": self._changed(callback, before),
                "written": _written(callback),
                "of_rank_0": is_of_rank_0(callback),
            }
            for callback, before in zip(self.callbacks, self._before, strict=True)
        ]

    def _changed(self, callback: Any, before: dict[str, Any]) -> dict[str, bytes]:
        attributes = {}
        for name, value in _attributes(callback):
            mark = _mark(value)
            if mark is not None and mark == before.get(name):
                continue
            # Functions too, by their names: Keras keeps the direction of a metric in one.
            pickled = _pickle(value)
            if pickled is not None:
                attributes[name] = pickled
        return attributes

    def before_train_begin(self, states: Sequence[dict[str, Any]]) -> None:
        """Lets files that callbacks append to end where they ended at the checkpoint."""
        for callback, state in self._pair(states):
            if isinstance(callback, keras.callbacks.CSVLogger) and Path(callback.filename).exists():
                if state is not None:
                    with Path(callback.filename).open("r+b") as file:
                        file.truncate(state["written"])
                callback.append = True  # or it would begin the file anew

    def put_back(self, states: Sequence[dict[str, Any]]) -> None:
        """Gives all callbacks the states that `save` returned, after their `on_train_begin`."""
        for callback, state in self._pair(states):
            if state is None:
                continue
            for name, pickled in state["attributes"].items():
                _set(callback, name, pickle.loads(pickled))
            if isinstance(callback, keras.callbacks.CSVLogger):
                callback.append_header = state["written"] == 0

    def match(self, states: Sequence[dict[str, Any]]) -> bool:
        """Whether the states are those of callbacks like these; those that only rank 0 has may be missing."""
        deciding = [state["class"] for state in states if not state["of_rank_0"]]
        return deciding == [type(cb).__qualname__ for cb in self.callbacks if not is_of_rank_0(cb)]

    def _pair(self, states: Sequence[dict[str, Any]]) -> list[tuple[Any, dict[str, Any] | None]]:
        """Returns each callback with its state; None where a rank without it has saved."""
        left: dict[str, list[dict[str, Any]]] = {}
        for state in states:
            left.setdefault(state["class"], []).append(state)
        pairs = []
        for callback in self.callbacks:
            same = left.get(type(callback).__qualname__, [])
            pairs.append((callback, same.pop(0) if same else None))
        return pairs


def _set(callback: Any, name: str, value: Any) -> None:
    """Sets an attribute; a list or dict keeps its identity, since the script may hold it as well."""
    present: Any = getattr(callback, name, None)
    if type(present) is type(value) is list:
        present[:] = value
    elif type(present) is type(value) and type(value) in (dict, set):
        present.clear()
        present.update(value)
    else:
        setattr(callback, name, value)


def _attributes(callback: Any) -> list[tuple[str, Any]]:
    kept = [(name, value) for name, value in vars(callback).items() if name not in _NOT_STATE]
    return [(name, value) for name, value in kept if not isinstance(value, keras.Model | keras.layers.Layer)]


def _pickle(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # an object's own pickling raises whatever it likes
        return None


def _mark(value: Any) -> Any:
    """What changes when a large array does; None for anything else."""
    if isinstance(value, np.ndarray) and value.nbytes >= _LARGE and value.dtype.kind != "O":
        return id(value), zlib.crc32(np.ascontiguousarray(value).tobytes())
    if isinstance(value, tuple | list) and value:
        marks = [_mark(part) for part in value]
        return tuple(marks) if None not in marks else None
    return None


def _written(callback: Any) -> int:
    """Bytes that a CSVLogger has written."""
    file = getattr(callback, "csv_file", None)
    if not isinstance(callback, keras.callbacks.CSVLogger) or file is None or file.closed:
        return 0
    file.flush()
    return Path(callback.filename).stat().st_size
