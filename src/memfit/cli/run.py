"""Run a training script that knows nothing of memfit: it fits into the memory, and survives its own death.

    memfit run --memory 8GiB train.py --epochs 20
    memfit run --resume train.py --epochs 20

Calls of fit(), evaluate() and predict() go through memfit. When the process dies (out of memory, SIGKILL, a crash
in a kernel), it is started again and goes on at the batch it was at. Ctrl-C ends it after the batch, with a
checkpoint in .memfit/ of the current directory; a run that reaches its end removes what it kept there.
The exit code is the script's.
"""

import argparse
import sys

from memfit.cli.common import add_allow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--memory", help="what each fit() may take, such as 8GiB (default: what is free)")
    add_allow(parser)
    parser.add_argument("--resume", action="store_true", help="go on where an earlier run was stopped")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end where memfit itself fails, instead of training without a plan",
    )
    parser.add_argument("script", help="the training script")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARG", help="the script's own arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the script to its end."""
    from memfit.survival.settings import RunSettings
    from memfit.survival.supervising import supervise

    settings = RunSettings(args.memory, args.allow, args.strict)
    return supervise(args.script, args.arguments, settings, resume=args.resume, tell=_tell)


def _tell(line: str) -> None:
    print(f"memfit: {line}", file=sys.stderr, flush=True)
