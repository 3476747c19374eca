"""Watch trainings on this machine, live: device and host memory, progress, predicted against measured.

    memfit top             # live; q quits
    memfit top --once      # print once
    memfit top --json      # print once, as JSON

memfit's own trainings are found by their records; other processes on GPUs are reported by the driver.
"""

import argparse
import sys

from memfit.cli.common import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--once", action="store_true", help="print once instead of live")
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
