"""What the user's names hold, from the names down: containers, large arrays, caches, traced functions, graphs."""

import functools
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from memfit.compat.tf_graphs import is_eager_tensor, is_traced_function, tables_that_keep
from memfit.training.leaks.user_code import frames_of, is_users, read_locals, users_modules
from memfit.training.leaks.weighing import size_of

# Far more than the names of a script lead to before libraries begin.
_MOST_OBJECTS = 20_000
_DEEPEST = 9
# How deep into objects of libraries: a model's layers and what they have been given.
_DEEPEST_IN_LIBRARIES = 2
# Items of a container are alike when there are many: the first and the last stand for the rest.
_MANY = 32
_LARGE = 64 << 10  # bytes from which one array or text is looked at by itself
_CACHE = type(functools.lru_cache(len))
_NOTHING_IN_IT = (int, float, complex, bool, type(None), CodeType, BuiltinFunctionType, range, slice)


@dataclass(slots=True)
class Holding:
    """Something that holds memory.

    Attributes:
        path: How the user reaches it, such as `trainer.losses`.
        kind: "container", "array", "cache", "traced function", "graph", or "library" for a library's table.
        thing: The object itself.
        parent: What it was found in: a function's code, the names of a module, an object or a container.
        name: By which name in there; empty where it is no name.
        size: Its items, or its bytes where it is one object.
        thread: The thread whose functions count.
    """

    path: str
    kind: str
    thing: Any
    parent: Any
    name: str
    size: int
    thread: int

    @property
    def key(self) -> object:
        """What it is known by in the next look: itself, or its name where a longer copy takes its place."""
        return self.path if self.kind == "array" else (self.kind, id(self.thing))

    def is_gone(self) -> bool:
        """Whether nothing but this holding keeps it, so that it would be gone without."""
        return sys.getrefcount(self.thing) <= 2

    def items(self) -> Any:
        """Returns the container whose items can be weighed."""
        if self.kind != "cache":
            return self.thing
        tables = [part for part in gc.get_referents(self.thing) if type(part) is dict]
        return max(tables, key=len, default=())

    def measure(self) -> int:
        """Returns its size now: of an array, which a longer copy may have replaced, by its name."""
        thing = self.thing
        if self.kind == "array" and isinstance(self.parent, CodeType):
            for frame in frames_of(self.thread):
                if frame.f_code is self.parent:
                    thing = read_locals(frame).get(self.name, thing)
        elif self.kind == "array" and self.name:
            names = self.parent if isinstance(self.parent, dict) else getattr(self.parent, "__dict__", {})
            thing = names.get(self.name, thing)
        return _MEASURES[self.kind](thing)


_MEASURES: dict[str, Callable[[Any], int]] = {
    "container": len,
    "library": len,
    "array": size_of,
    "cache": lambda cache: int(cache.cache_info().currsize),
    "traced function": lambda function: int(function.experimental_get_tracing_count()),
    "graph": lambda graph: int(graph.version),
}


def find_holdings(thread: int, leave_out: Iterable[Any] = ()) -> list[Holding]:
    """Returns what the user's modules and the running functions of a thread hold.

    Args:
        thread: The thread whose functions count.
        leave_out: Objects that are not entered, such as what does the looking.
    """
    walk = _Walk({id(thing) for thing in leave_out}, thread)
    for names in users_modules():
        walk.enter(names, names, "")
    frames = frames_of(thread)
    for frame in sorted(frames, key=lambda frame: not is_users(frame.f_code.co_filename)):
        # A module's frame has the module's names, which are known by now.
        if frame.f_code.co_name != "<module>":
            users = is_users(frame.f_code.co_filename)
            where = "" if users else f" in {frame.f_code.co_name}()"
            walk.enter(read_locals(frame), frame.f_code, where)
    for path, table in tables_that_keep().items():
        walk.holdings.append(Holding(path, "library", table, None, "", len(table), thread))
    walk.run()
    return walk.holdings


class _Walk:
    """A walk from names to objects, breadth first, so that each is found by its shortest path."""

    def __init__(self, seen: set[int], thread: int) -> None:
        self._thread = thread
        self.holdings: list[Holding] = []
        self._seen = seen
        self._seen |= {id(self), id(seen), id(self.holdings)}
        self._queue: deque[tuple[Any, str, int, int]] = deque()

    def enter(self, names: dict[str, Any], parent: Any, where: str) -> None:
        """Begins at the names of a module or a function."""
        for name, thing in list(names.items()):
            if not name.startswith("__"):
                self._visit(thing, name + where, parent, name, 0, 1 if where else 0)

    def run(self) -> None:
        """Walks to the end, or as far as is allowed."""
        while self._queue and len(self._seen) < _MOST_OBJECTS:
            thing, path, depth, foreign = self._queue.popleft()
            for part, parent, name, child in _parts_of(thing):
                self._visit(child, path + part, parent, name, depth + 1, foreign)

    def _visit(self, thing: Any, path: str, parent: Any, name: str, depth: int, foreign: int) -> None:
        kind = type(thing)
        if kind in _NOTHING_IN_IT or id(thing) in self._seen:
            return
        self._seen.add(id(thing))
        told, enter = _judge(thing, kind)
        if told:
            if (" in " in path or path == f"self.{name}") and name and not _is_foreign(type(parent)):
                path = f"{type(parent).__name__}.{name}"  # not by a name that means something elsewhere
            try:
                size = _MEASURES[told](thing)
                self.holdings.append(Holding(path, told, thing, parent, name, size, self._thread))
            except Exception:  # an object whose length fails is no holder
                return
        if enter and depth < _DEEPEST:
            if kind.__module__ != "builtins":
                foreign = foreign + 1 if _is_foreign(kind) else 0
            if foreign <= _DEEPEST_IN_LIBRARIES:
                self._queue.append((thing, path, depth, foreign))


def _judge(thing: Any, kind: type) -> tuple[str, bool]:
    """As what a thing holds memory ("" for nothing), and whether to look into it."""
    if issubclass(kind, list | dict | set | deque):
        return "container", True
    if issubclass(kind, np.ndarray) or kind in (str, bytes, bytearray) or is_eager_tensor(thing):
        return ("array", False) if size_of(thing) >= _LARGE else ("", False)
    if kind is _CACHE:
        return "cache", False
    if is_traced_function(thing):
        return "traced function", False
    if kind.__name__ in ("Graph", "FuncGraph"):
        return ("graph", False) if hasattr(thing, "version") else ("", False)
    if issubclass(kind, ModuleType):
        return "", False
    if issubclass(kind, type):
        return "", not _is_foreign(thing)
    return "", True


_foreign: dict[type, bool] = {}  # classes of the user's own program: few, and there for good


def _is_foreign(kind: type) -> bool:
    """Whether a class is a library's."""
    if kind not in _foreign:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        _foreign[kind] = kind.__module__ != "__main__" and not (isinstance(file, str) and is_users(file))
    return _foreign[kind]


def _parts_of(thing: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """Yields what a thing refers to: how one writes it, in what it is, by which name, and itself."""
    if isinstance(thing, dict):
        items = _some(list(thing.items()))
        for key, value in items:
            yield f"[{str(key)[:40]!r}]" if isinstance(key, str) else f"[{key!r:.40}]", thing, "", value
    elif isinstance(thing, list | tuple | deque | set | frozenset):
        for number, value in _some(list(enumerate(list(thing)))):
            yield f"[{number}]", thing, "", value
    elif isinstance(thing, FunctionType):
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False)
        for name, cell in cells:
            try:
                yield f".<closure>.{name}", thing, "", cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        for value in thing.__defaults__ or ():
            yield ".<default>", thing, "", value
        for name, value in list(thing.__dict__.items()):
            yield f".{name}", thing, name, value
    elif isinstance(thing, MethodType):
        yield ".__self__", thing, "", thing.__self__
        yield "", thing, "", thing.__func__
    elif isinstance(thing, GeneratorType):
        if thing.gi_frame is not None:
            for name, value in read_locals(thing.gi_frame).items():
                yield f".{name}", thing, "", value
    else:
        yield from _attributes_of(thing)


def _attributes_of(thing: Any) -> Iterator[tuple[str, Any, str, Any]]:
    names = getattr(type(thing), "__dictoffset__", 0) and getattr(thing, "__dict__", None)
    known = set()
    if names:
        for name, value in list(names.items()):
            known.add(id(value))
            if not (isinstance(thing, type) and str(name).startswith("__")):
                yield f".{name}", thing, name if isinstance(name, str) else "", value
    if not isinstance(thing, type):
        for value in gc.get_referents(thing):  # slots, and what objects of C keep
            if id(value) not in known and value is not names and not isinstance(value, type):
                yield "", thing, "", value


def _some(items: list[Any]) -> list[Any]:
    return items if len(items) <= _MANY else [items[0], *items[-2:]]
