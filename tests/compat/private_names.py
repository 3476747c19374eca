"""What the source uses of other libraries that these do not promise to keep, read from the source itself."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "memfit"
COMPAT = SOURCE / "compat"
_PRIVATE_MODULES = (
    "keras.src",
    "tensorflow.python",
    "tensorflow.core",
    "tensorflow.compiler",
    "tensorflow.tsl",
    "jax._src",
)
# Python's own, and names in TensorFlow's format for saved graphs, which is kept stable.
_PROMISED = {
    "_replace",
    "_asdict",
    "_current_frames",
    "_getframe",
    "_fields",
    "_exit",
    "_MEIPASS",
    "_class",
    "_output_shapes",
    "_Retval",
}


@dataclass(frozen=True)
class Use:
    """One private name, where it is used, and whether it is set there."""

    name: str
    file: Path
    line: int
    function: str
    written: bool = False

    def __str__(self) -> str:
        return f"{self.file.relative_to(SOURCE.parent)}:{self.line}: {self.name}"


@cache
def private_uses() -> list[Use]:
    """Lists every private name of another library in memfit's source."""
    trees = {file: ast.parse(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}
    return [use for file, tree in trees.items() for use in _uses(file, tree)]


def _defined(tree: ast.Module) -> Iterator[str]:
    """Names that a file gives its own functions, classes, attributes and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            yield node.attr


def _uses(file: Path, tree: ast.Module) -> Iterator[Use]:
    # In compat a private name is another library's even where the wrapper has the same name.
    own = set() if file.parent == COMPAT else set(_defined(tree))
    for function, node in _nodes(tree):
        for name, written in _names(node):
            if name not in _PROMISED and name not in own:
                yield Use(name, file, node.lineno, function, written)


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    for top in tree.body:
        for node in ast.walk(top):
            if isinstance(node, ast.expr | ast.stmt):
                yield getattr(top, "name", ""), node


def _names(node: ast.expr | ast.stmt) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Attribute) and _is_private(node.attr):
        yield node.attr, isinstance(node.ctx, ast.Store)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        if _is_private(node.value):  # an attribute's name, for `getattr`
            yield node.value, False
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value.startswith(_PRIVATE_MODULES) and " " not in node.value:  # for `import_module`
            yield node.value, False
    elif isinstance(node, ast.Call):  # an attribute's name, for `overridden`
        names = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
        yield from ((name, True) for name in names if _is_private(name))
    elif isinstance(node, ast.Import):
        yield from ((alias.name, False) for alias in node.names if _is_private_module(alias.name))
    elif isinstance(node, ast.ImportFrom) and _is_private_module(node.module or ""):
        yield from ((f"{node.module}.{alias.name}", False) for alias in node.names)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and len(name) > 1


def _is_private_module(name: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in _PRIVATE_MODULES)
