"""Explain an out-of-memory error: what ran out, which layer asked, what held the memory, what would help.

Reads a log or a traceback from a file or from standard input:

    python train.py 2>&1 | tee log.txt; memfit explain log.txt

The exit code is 0 if the text could be explained, 1 if memfit does not recognise it, 2 for wrong usage.
"""

import argparse
import sys
from pathlib import Path

from memfit.cli.common import add_json, print_json
from memfit.errors import InvalidInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("log", nargs="?", default="-", help="the log file (default: standard input)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the explanation; 1 where the text is unknown."""
    from memfit.oom.reading import read_error

    explanation = read_error(_read(args.log))
    if args.json:
        print_json(explanation.to_json())
    else:
        print(explanation)
    return 1 if explanation.ran_out == "unknown" else 0


def _read(log: str) -> str:
    """Returns the text; bytes that are not UTF-8 are replaced, since logs of several processes may tear them."""
    if log == "-":
        if sys.stdin.isatty():
            print("Paste the log and end it with Ctrl-D.", file=sys.stderr)
        return sys.stdin.buffer.read().decode(errors="replace")
    try:
        return Path(log).read_text(errors="replace")
    except OSError as error:
        raise InvalidInput(
            f"The log cannot be read ({error.strerror})",
            received=log,
            remedy="Give the path of a text file, or - for the standard input",
        ) from error
