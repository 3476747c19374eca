"""Watch what trains on this machine: memory of devices, host and cgroup, progress, predicted against measured.

    memfit top             # live; q quits
    memfit top --once      # one look
    memfit top --json      # one look, for programs

memfit's own runs are found by their records; other processes on GPUs are those that the driver reports.
"""

import argparse
import sys

from memfit.cli.common import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--once", action="store_true", help="look once instead of watching")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Shows the machine, live on a terminal."""
    from memfit.reporting.console import console
    from memfit.reporting.live import draw_snapshot, watch
    from memfit.training.records.watching import look

    if args.json:
        print_json(look().to_json())
    elif args.once or not sys.stdout.isatty():
        console().print(draw_snapshot(look()), soft_wrap=True)
    else:
        watch(look, console())
    return 0
