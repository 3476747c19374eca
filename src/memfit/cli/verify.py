"""Try on this machine what memfit promises: four small trainings, two to three minutes.

    memfit verify                      # writes memfit-verify.json as well, to attach to a bug report

It runs on the GPU that is here, or in an arena on the CPU: predicted against measured peaks, an exact plan against
stock Keras bit by bit, an out-of-memory that is undone, and the speed of a job that fits. The exit code is 0 if all
of it holds, and 1 if something does not.
"""

import argparse
import json
import os
from pathlib import Path

from memfit.cli.common import add_json, add_output, print_json, refuse_to_overwrite
from memfit.errors import InvalidInput

_FILE = Path("memfit-verify.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_json(parser)
    add_output(parser, "--output", f"where to write the figures (default: {_FILE}, which is overwritten)")


def run(args: argparse.Namespace) -> int:
    """Verifies, prints the table, and writes the figures."""
    refuse_to_overwrite(args.output, args.force)
    file = args.output or _FILE
    if not os.access(file.parent, os.W_OK):
        raise InvalidInput(
            "The figures are written to a folder that exists and can be written to",
            received=str(file),
            remedy="Name another file with --output",
        )
    from memfit.reporting.console import show_progress
    from memfit.verification.verifying import verify

    with show_progress("Verifying"):
        verification = verify()
    file.write_text(json.dumps(verification.to_json(), indent=2) + "\n")
    if args.json:
        print_json(verification.to_json())
        return 0 if verification.passed else 1
    print(verification)
    print(f"figures written to {file}")
    if not verification.passed:
        print("something does not hold here: please report it, with that file")
    return 0 if verification.passed else 1
