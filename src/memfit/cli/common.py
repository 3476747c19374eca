"""What several commands share: `--json`, `--allow`, and not overwriting a file unasked."""

import argparse
import json
from pathlib import Path
from typing import Any

from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declares `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_allow(parser: argparse.ArgumentParser, default: str | None = str(Fidelity.NEAR)) -> None:
    """Declares `--allow`; a default of None tells a command whether it was given."""
    parser.add_argument(
        "--allow",
        default=default,
        choices=[str(fidelity) for fidelity in Fidelity],
        help="how far changes may go: exact (same mathematics), near (batch statistics over fewer samples), "
        f"precision (16-bit activations), model (default: {Fidelity.NEAR})",
    )


def add_script(parser: argparse.ArgumentParser) -> None:
    """Declares a training script and, behind it, the script's own arguments."""
    parser.add_argument("script", help="the training script")
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARG", help="the script's own arguments"
    )
    rest.required = False  # argparse would ask for it where there is no script


def add_output(parser: argparse.ArgumentParser, flag: str, help_text: str) -> None:
    """Declares a flag that names a file to write, and `--force` to overwrite it."""
    parser.add_argument(flag, type=Path, metavar="FILE", help=help_text)
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")


def refuse_to_overwrite(file: Path | None, force: bool) -> None:
    """Refuses a file to write that exists, before any work is done.

    Raises:
        InvalidInput: If it exists and `force` is not set.
    """
    if file is not None and file.exists() and not force:
        raise InvalidInput("The file already exists", received=str(file), remedy="Overwrite it with --force")


def print_json(data: Any) -> None:
    """Prints plain data for programs."""
    print(json.dumps(data, indent=2))
