"""List past trainings, newest first: predicted and measured peaks, and how each ended.

    memfit runs

Every fit() under memfit.fit or memfit run leaves a record: a small JSON file in $MEMFIT_RUNS, or in the user's
cache folder. The newest 200 are kept. MEMFIT_RUNS=0 turns records off.
"""

import argparse

from memfit.cli.common import add_json, print_json

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--all", action="store_true", help=f"list all, not only the newest {_SHOWN}")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the list."""
    from memfit.reporting.runs import describe_runs, to_summary
    from memfit.training.records.files import read_records

    records = read_records()
    if args.json:
        print_json([to_summary(record, path) for path, record in records])
        return 0
    most = len(records) if args.all else _SHOWN
    print(describe_runs([record for _, record in records], most, "memfit report RUN"))
    return 0
