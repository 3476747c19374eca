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


def add_allow(parser: argparse.ArgumentParser) -> None:
    """Declares `--allow`."""
    parser.add_argument(
        "--allow",
        default=str(Fidelity.NEAR),
        choices=[str(fidelity) for fidelity in Fidelity],
        help="how far changes may go: exact (same mathematics), near (batch statistics over fewer samples), "
        "precision (16-bit activations), model (default: %(default)s)",
    )


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
