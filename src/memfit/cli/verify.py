"""Try on this machine what memfit promises: four small trainings, two to three minutes.

    memfit verify                      # writes memfit-verify.json as well, to attach to a bug report

It runs on the GPU that is here, or in an arena on the CPU: predicted against measured peaks, an exact plan against
stock Keras bit by bit, an out-of-memory that is undone, and the speed of a job that fits. The exit code is 0 if all
of it holds, and 1 if something does not.
"""

import argparse
import json
from pathlib import Path

from memfit.cli.common import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_json(parser)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("memfit-verify.json"),
        metavar="FILE",
        help="where to write the figures (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Verifies, prints the table, and writes the figures."""
    from memfit.reporting.console import show_progress
    from memfit.verification.verifying import verify

    with show_progress("Verifying"):
        verification = verify()
    args.output.write_text(json.dumps(verification.to_json(), indent=2) + "\n")
    if args.json:
        print_json(verification.to_json())
        return 0 if verification.passed else 1
    print(verification)
    print(f"figures written to {args.output}")
    if not verification.passed:
        print("something does not hold here: please report it, with that file")
    return 0 if verification.passed else 1
