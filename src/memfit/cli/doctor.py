"""Show how much memory there is, how TensorFlow will use it, and what is worth changing."""

import argparse

from memfit.cli.common import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the diagnosis; whatever it finds, the exit code is 0."""
    from memfit.budgets.diagnosis import diagnose
    from memfit.reporting.console import console, show_progress
    from memfit.reporting.doctor import print_diagnosis

    with show_progress("looking at devices, host and TensorFlow"):
        diagnosis = diagnose()
    if args.json:
        print_json(diagnosis.to_json())
    else:
        print_diagnosis(diagnosis, console())
    return 0
