"""Run a training script that knows nothing of memfit: it fits into the memory, and survives its own death.

    memfit run --memory 8GiB train.py --epochs 20
    memfit run --resume train.py --epochs 20
    memfit run --ranks 4 train.py

Calls of fit(), evaluate() and predict() go through memfit. Before each fit() it says what is planned, at the end
what came of it. When the process dies (out of memory, SIGKILL, a crash in a kernel), it is started again and goes
on at the batch it was at. Ctrl-C ends it after the batch, with a checkpoint in .memfit/ of the current directory; a
run that reaches its end removes what it kept there. A loop without fit() is measured, not changed. What memfit says
goes to the error stream; the exit code is the script's.

With --ranks the script runs in several processes, one for each GPU, which train as one large device would. Under
TF_CONFIG or Slurm's srun a process joins the job that it belongs to; with --ray a Ray cluster runs the ranks.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memfit.cli.common import add_allow

if TYPE_CHECKING:
    from memfit.training.records.record import RunRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--memory", help="what each fit() may take, such as 8GiB (default: what is free)")
    add_allow(parser)
    parser.add_argument(
        "--ranks", type=int, default=1, metavar="N", help="train on N devices of this machine together"
    )
    parser.add_argument(
        "--ray", action="store_true", help="let a Ray cluster run the ranks (pip install 'memfit[ray]')"
    )
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="go on with fewer ranks where one cannot be started again",
    )
    parser.add_argument(
        "--shard-optimizer",
        action="store_true",
        help="each rank may keep a part of the optimizer's state, where that is needed; a lost rank then costs the "
        "epoch",
    )
    parser.add_argument("--resume", action="store_true", help="go on where an earlier run was stopped")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end where memfit itself fails, instead of training without a plan",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="look for memory that grows steadily; say at the end what holds it",
    )
    parser.add_argument("--quiet", action="store_true", help="say only what goes wrong")
    parser.add_argument(
        "--json",
        action="store_true",
        help="as --quiet, and one line of JSON on the standard output when the script has ended",
    )
    parser.add_argument("script", help="the training script")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARG", help="the script's own arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the script to its end."""
    from memfit.survival.settings import RunSettings
    from memfit.survival.supervising import supervise

    quiet = args.quiet or args.json
    settings = RunSettings(
        args.memory,
        args.allow,
        args.strict,
        quiet=quiet,
        watch=args.watch,
        ranks=args.ranks,
        elastic=args.elastic,
        shard_optimizer=args.shard_optimizer,
    )
    if args.ray:
        from memfit.survival.ray_job import run_on_ray

        return run_on_ray(args.script, args.arguments, settings, resume=args.resume, tell=_tell)
    seen: list[tuple[Path, RunRecord]] = []

    def report(records: Sequence[tuple[Path, "RunRecord"]]) -> None:
        seen.extend(records)
        if records and not quiet:
            _show(records)

    code = supervise(args.script, args.arguments, settings, resume=args.resume, tell=_tell, report=report)
    if args.json:
        _print_json(code, seen)
    return code


def _show(records: Sequence[tuple[Path, "RunRecord"]]) -> None:
    from memfit.reporting.runs import describe_end
    from memfit.training.records.files import records_folder

    kept = records_folder() is not None
    for line in describe_end(records, kept=kept, next_command="memfit report RUN").splitlines():
        _tell(line)


def _print_json(code: int, records: Sequence[tuple[Path, "RunRecord"]]) -> None:
    from memfit.reporting.runs import to_summary

    runs = [to_summary(record, path) for path, record in records]
    print(json.dumps({"exit_code": code, "runs": runs}))


def _tell(line: str) -> None:
    print(f"memfit: {line}", file=sys.stderr, flush=True)
