"""Where the user's code adds to a holder, as it is written: for what grows in a thread that cannot be traced."""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

from memfit.training.leaks.holders import Holding
from memfit.training.leaks.user_code import is_users

_ADDING = {"append", "appendleft", "extend", "add", "insert", "update", "setdefault", "put"}


def find_adding_lines(holding: Holding) -> list[str]:
    """Returns the lines, as `file:line`, that add to what a holding's name refers to; none where it has no name."""
    name = holding.name
    file = _file_of(holding)
    if not name or holding.kind != "container" or file is None or not is_users(file):
        return []
    inside = _lines_of(holding.parent) if isinstance(holding.parent, CodeType) else None
    return [f"{file}:{line}" for line in _lines(file, name) if inside is None or line in inside]


def _lines_of(code: CodeType) -> range:
    """The lines of a function, those it defines inside included: the same name elsewhere is another."""
    parts = [code, *(part for part in code.co_consts if isinstance(part, CodeType))]
    return range(code.co_firstlineno, 1 + max(line or 0 for part in parts for _, _, line in part.co_lines()))


def _file_of(holding: Holding) -> str | None:
    """The file in which the holder's name is used: a function's, or that of an object's class."""
    parent = holding.parent
    if isinstance(parent, CodeType):
        return parent.co_filename
    if isinstance(parent, dict):
        file = parent.get("__file__")
    else:
        file = getattr(sys.modules.get(type(parent).__module__), "__file__", None)
    return file if isinstance(file, str) else None


@functools.lru_cache(maxsize=100)
def _lines(file: str, name: str) -> list[int]:
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return []
    return sorted(set(_adding(tree, name)))


def _adding(tree: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _ADDING and _is_called(node.func.value, name):
                yield node.lineno
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and _is_called(target.value, name):
                    yield node.lineno
        elif isinstance(node, ast.AugAssign) and _is_called(node.target, name):
            yield node.lineno


def _is_called(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == name
    )
