"""Show what memory there is, how TensorFlow will take it, and what is worth changing."""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    parser.add_argument("--json", action="store_true", help="print plain data for programs")


def run(args: argparse.Namespace) -> int:
    """Prints the diagnosis; whatever it finds, the exit code is 0."""
    from memfit.budgets.diagnosis import diagnose
    from memfit.reporting.console import console, working
    from memfit.reporting.doctor import print_diagnosis

    with working("Looking at devices, host and TensorFlow"):
        seen = diagnose()
    if args.json:
        print(json.dumps(seen.to_json(), indent=2))
    else:
        print_diagnosis(seen, console())
    return 0
