"""Who keeps objects alive: the variables, closures, outputs and errors that lead to them, in plain words.

Everything that is found is told as text, so that a report keeps nothing alive itself.
"""

import functools
import inspect
import sys
import sysconfig
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Beyond this many objects behind one variable a holder is not worth a person's waiting.
_MOST_OBJECTS = 20_000
_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN = str(Path(__file__).parents[1])
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), types.CodeType, types.ModuleType)
_LAST_OUTPUTS = ("_", "__", "___")  # IPython's names for them
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


@dataclass(frozen=True)
class _Step:
    """One object on the way from a variable: how it is written behind the one before it, and who that was."""

    label: str
    owner: Any
    before: "_Step | None" = None

    def way(self) -> "list[_Step]":
        return [*([] if self.before is None else self.before.way()), self]


@dataclass(frozen=True)
class _Root:
    """A place where Python begins to count what is alive: a name, where it is, and what it names."""

    name: str
    where: str
    value: Any
    direct: bool = False  # whether only the name itself is of interest: a local variable of a library


@dataclass
class Search:
    """Looks for what holds some objects, for at most some seconds.

    Attributes:
        wanted: The objects by their `id`, each with the name it is told by.
        seconds: How long to look.
        sentences: Sentences by the `id` of an object, complete after `run`.
        complete: Whether there was time for all.
    """

    wanted: Mapping[int, str]
    seconds: float = 2.0
    sentences: dict[int, list[str]] = field(default_factory=dict)
    complete: bool = True

    def run(self) -> None:
        """Looks from every variable; what it finds is text."""
        self._end = time.monotonic() + self.seconds
        self._namespaces = {id(vars(module)) for module in _modules()}
        for root in [*_module_roots(), *_error_roots(), *_frame_roots()]:
            if time.monotonic() > self._end:
                self.complete = False
                return
            for target, steps in self._search(root):
                says = _tell(root, steps, self.wanted[target])
                if says not in self.sentences.setdefault(target, []):
                    self.sentences[target].append(says)

    def _search(self, root: _Root) -> Iterator[tuple[int, list[_Step]]]:
        """The ways from a variable to what is looked for, the shortest one each."""
        if isinstance(root.value, _PLAIN):
            return
        if id(root.value) in self.wanted:
            yield id(root.value), []
            return
        queue: deque[tuple[Any, _Step | None]] = deque([] if root.direct else [(root.value, None)])
        seen = {id(root.value)}
        while queue and len(seen) < _MOST_OBJECTS:
            owner, way = queue.popleft()
            for label, part in _parts(owner):
                if id(part) in seen or isinstance(part, _PLAIN) or id(part) in self._namespaces:
                    continue
                seen.add(id(part))
                step = _Step(label, owner, way)
                if id(part) in self.wanted:
                    yield id(part), step.way()
                elif not isinstance(part, type) and not label.startswith("library"):
                    queue.append((part, step))
            if time.monotonic() > self._end:
                self.complete = False
                return


def is_library(file: str) -> bool:
    """Says whether a file belongs to Python, to an installed package or to memfit, not to the user."""
    return file.startswith((*_LIBRARIES, _OWN, "<frozen")) or "-packages/" in file


def _modules() -> list[types.ModuleType]:
    return [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]


def _module_roots() -> Iterator[_Root]:
    """The variables of the user's modules, and a notebook's outputs."""
    for module in _modules():
        file = getattr(module, "__file__", None)
        if module.__name__ != "__main__" and (not isinstance(file, str) or is_library(file)):
            continue
        where = "in __main__" if module.__name__ == "__main__" else f"in module {module.__name__}"
        hidden = _notebook_names() if module.__name__ == "__main__" else set()
        for name, value in list(vars(module).items()):
            if name in hidden and name == "Out":
                for number, output in list(value.items()):
                    yield _Root(f"Out[{number}]", "", output)
            elif name in hidden and name in _LAST_OUTPUTS:
                yield _Root(name, "", value)
            elif name not in hidden and not (hidden and name[:1] == "_" and name[1:].isdigit()):
                yield _Root(name, where, value)


def _notebook_names() -> set[str]:
    """The names that IPython itself has put beside the user's variables."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return set() if shell is None else {*shell.user_ns_hidden, *_LAST_OUTPUTS, "Out", "In"}


def _error_roots() -> Iterator[_Root]:
    """What Python and notebooks keep of the last error that nobody caught: every frame that it passed."""
    for name in ("last_exc", "last_value"):
        error = getattr(sys, name, None)
        if error is not None:
            yield _Root(f"sys.{name}", f"(the last error, {type(error).__name__})", error)
            return


def _frame_roots() -> Iterator[_Root]:
    """The local variables of all functions that are running; those of libraries only by themselves."""
    for frame in _running_frames():
        code = frame.f_code
        if not code.co_filename.startswith(_OWN):
            line = f"{Path(code.co_filename).name}:{frame.f_lineno}"
            for name, value in _locals(frame):
                where = f"in the running function `{code.co_name}` ({line})"
                yield _Root(name, where, value, direct=is_library(code.co_filename))


def _running_frames() -> Iterator[types.FrameType]:
    for first in list(sys._current_frames().values()):
        frame: types.FrameType | None = first
        while frame is not None:
            yield frame
            frame = frame.f_back


def _locals(frame: types.FrameType) -> list[tuple[str, Any]]:
    """The local variables of a function. Before Python 3.13 the frame keeps a copy, which must not stay."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return []  # a module's variables, which are looked at by themselves
    names = frame.f_locals
    pairs = list(names.items())
    if isinstance(names, dict):
        names.clear()
    return pairs


def _parts(owner: Any) -> list[tuple[str, Any]]:
    """What an object holds, each with how it is written behind the object."""
    with suppress(Exception):  # an object's own code, or another thread changed it
        if isinstance(owner, types.FunctionType):
            return _parts_of_function(owner)
        for kind, parts in _PARTS:
            if isinstance(owner, kind):
                return parts(owner)
        if isinstance(owner, type):
            return [(f".{name}", value) for name, value in vars(owner).items()]
        named = [(f".{name}", value) for name, value in getattr(owner, "__dict__", {}).items()]
        slots = {name for kind in type(owner).__mro__ for name in _slots(kind)}
        return [*named, *((f".{name}", getattr(owner, name)) for name in slots if hasattr(owner, name))]
    return []


def _slots(kind: type) -> Sequence[str]:
    slots = vars(kind).get("__slots__", ())
    return [slots] if isinstance(slots, str) else [name for name in slots if not name.startswith("__")]


def _parts_of_function(function: types.FunctionType) -> list[tuple[str, Any]]:
    parts = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            parts.append((f"closure {name}", cell.cell_contents))
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    parts += [("default", value) for value in defaults]
    return [*parts, *((f".{name}", value) for name, value in vars(function).items())]


def _parts_of_error(error: BaseException) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = [(".__cause__", error.__cause__), (".__context__", error.__context__)]
    running = {id(frame) for frame in _running_frames()}  # whose variables are looked at by themselves
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        kind = "library" if is_library(code.co_filename) else "frame"
        if id(trace.tb_frame) not in running:
            parts += [(f"{kind} {code.co_name} {name}", value) for name, value in _locals(trace.tb_frame)]
        trace = trace.tb_next
    return [*parts, *((".args", value) for value in error.args)]


def _parts_of_generator(generator: Any) -> list[tuple[str, Any]]:
    frame = generator.gi_frame
    return [] if frame is None else [(f"frame {frame.f_code.co_name} {n}", v) for n, v in _locals(frame)]


_PARTS: Sequence[tuple[Any, Callable[[Any], list[tuple[str, Any]]]]] = (
    (dict, lambda owner: [(f"[{_short(key)}]", value) for key, value in list(owner.items())]),
    ((list, tuple, deque), lambda owner: [(f"[{n}]", value) for n, value in enumerate(list(owner))]),
    ((set, frozenset), lambda owner: [("", value) for value in list(owner)]),
    (types.MethodType, lambda owner: [(".__self__", owner.__self__), (".__func__", owner.__func__)]),
    (functools.partial, lambda owner: [("", part) for part in (owner.func, *owner.args, owner.keywords)]),
    (BaseException, _parts_of_error),
    (types.GeneratorType, _parts_of_generator),
)


def _short(key: Any) -> str:
    return repr(key) if isinstance(key, str | int) and len(repr(key)) <= 30 else "..."


def _tell(root: _Root, steps: list[_Step], wanted: str) -> str:
    """A way from a variable to an object as a sentence."""
    place = root.name if not root.where else f"`{root.name}` {root.where}"
    if not steps:
        return place
    for step in reversed(steps):
        kind, _, name = step.label.partition(" ")
        if kind == "closure":
            return f"a closure of function `{step.owner.__name__}`, variable `{name}` ({place})"
        if kind == "default":
            return f"{place} holds `{wanted}` (a default argument of `{step.owner.__name__}`)"
        if kind in ("frame", "library"):
            function, _, variable = name.partition(" ")
            return f"{place}: variable `{variable}` of `{function}`"
    written = root.name + "".join(map(_write, steps))
    if isinstance(root.value, _CONTAINERS) and len(steps) == 1:
        return f"a {type(root.value).__name__} {place} (`{written}`)"
    last = steps[-1]
    owner = last.owner if isinstance(last.owner, type) else type(last.owner)
    detail = f"{owner.__name__}{_write(last)}" if len(steps) == 1 else f"`{written}`"
    return f"{place} holds `{wanted}` ({detail})"


def _write(step: _Step) -> str:
    """A step as a person writes it: `.model` for an attribute `_model` behind a property of that name."""
    public = step.label.replace("._", ".", 1)
    return public if hasattr(type(step.owner), public[1:]) else step.label
