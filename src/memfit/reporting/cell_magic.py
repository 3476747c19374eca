"""`%%memfit`: a notebook's cell that trains, with its plan, its memory and a picture below it."""

import argparse
import ast
import shlex
from typing import Any

from memfit.errors import InvalidInput

_USAGE = "%%memfit [--memory 8GiB] [--allow exact|near|precision|model]"


def register(shell: Any) -> None:
    """Registers the magic in a shell of IPython."""

    def memfit(line: str, cell: str) -> Any:
        """Trains through memfit what the cell trains, and shows what became of it."""
        return run_cell(shell, line, cell)

    shell.register_magic_function(memfit, "cell", "memfit")


def run_cell(shell: Any, line: str, cell: str) -> Any:
    """Runs a cell in the user's namespace, its trainings through memfit, and returns the value of its last line.

    Args:
        shell: IPython's.
        line: What is behind `%%memfit`.
        cell: The cell's text.

    Raises:
        InvalidInput: If the line is not understood.
    """
    from IPython.display import display

    from memfit.survival.cells import trainings_through_memfit

    options = _read(line)
    with trainings_through_memfit(options.memory, options.allow) as runs:
        value = _execute(shell, cell)
        ended = runs()
    for run in ended:
        display(run)
    if not ended:
        print("memfit: no fit() ended in this cell")
    return value


def _execute(shell: Any, cell: str) -> Any:
    """Executes a cell as IPython would, in one piece, and returns the value of its last line."""
    source = shell.transform_cell(cell)
    name = shell.compile.cache(source)  # so that a traceback shows its lines
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), shell.user_ns)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), shell.user_ns)


def _read(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser("%%memfit", add_help=False, exit_on_error=False)
    parser.add_argument("--memory")
    parser.add_argument("--allow", default="near")
    try:
        options, rest = parser.parse_known_args(shlex.split(line))
    except (argparse.ArgumentError, ValueError) as error:
        raise InvalidInput(f"{error}", received=line, remedy=f"Write {_USAGE}") from error
    if rest:
        raise InvalidInput(
            "%%memfit knows no such argument", received=" ".join(rest), remedy=f"Write {_USAGE}"
        )
    return options
