"""Check memfit's promises on this machine: four small trainings, two to three minutes.

    memfit verify                      # also writes memfit-verify.json, to attach to a bug report

It runs on the first GPU, or in an arena on the CPU. It compares predicted with measured peaks and an exact plan
with stock Keras, bit by bit; rolls back an out-of-memory error; and times a job that fits. The exit code is 0
if all checks pass, and 1 otherwise.
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
            "The folder for the figures must exist and be writable",
            received=str(file),
            remedy="Name another file with --output",
        )
    from memfit.reporting.console import show_progress
    from memfit.verification.verifying import verify

    with show_progress("verifying"):
        verification = verify()
    file.write_text(json.dumps(verification.to_json(), indent=2) + "\n")
    if args.json:
        print_json(verification.to_json())
        return 0 if verification.passed else 1
    print(verification)
    print(f"figures written to {file}")
    if not verification.passed:
        print("some checks failed: please report it, and attach that file")
    return 0 if verification.passed else 1
