"""Run any Keras training script, unchanged: make it fit into memory, and restart it at its batch if it dies.

    memfit run --memory 8GiB train.py --epochs 20
    memfit run --resume train.py --epochs 20
    memfit run --ranks 4 train.py

Calls of fit(), evaluate() and predict() go through memfit. The plan is printed before each fit(), the result at
the end, both on standard error. If the process dies (out of memory, SIGKILL, a crash in a kernel), it is
restarted and continues at the same batch. Ctrl-C stops it after the current batch with a checkpoint in .memfit/
of the current directory; a completed run removes its checkpoints. A loop without fit() is measured, not
changed. The exit code is the script's.

With --ranks the script runs in several processes, one per GPU, which together train as one large device would.
Under TF_CONFIG or Slurm's srun a process joins its job; with --ray a Ray cluster runs the processes.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memfit.cli.common import add_allow, add_script

if TYPE_CHECKING:
    from memfit.training.records.record import RunRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--memory", help="memory for each fit(), such as 8GiB (default: what is free)")
    add_allow(parser, default=None)
    parser.add_argument("--ranks", type=int, metavar="N", help="train on N devices of this machine")
    parser.add_argument(
        "--ray", action="store_true", help="run the ranks on a Ray cluster (pip install 'memfit[ray]')"
    )
    parser.add_argument(
        "--elastic",
        action="store_true",
        default=None,
        help="continue with fewer ranks if one cannot be restarted",
    )
    parser.add_argument(
        "--shard-optimizer",
        action="store_true",
        default=None,
        help="let each rank keep a part of the optimizer state if needed; losing a rank then costs the epoch",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue an earlier run that was stopped, with its options unless others are given",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        default=None,
        help="stop if planning fails, instead of training without a plan",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        default=None,
        help="look for memory leaks, and print them at the end",
    )
    parser.add_argument("--quiet", action="store_true", help="print only problems")
    parser.add_argument(
        "--json",
        action="store_true",
        help="like --quiet, and print one line of JSON on standard output at the end",
    )
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the script to its end."""
    from memfit.survival.settings import FLAGS, RunSettings
    from memfit.survival.supervising import supervise

    quiet = args.quiet or args.json
    # A run that goes on keeps what it is not told anew. How much is printed is a matter of this command.
    told = {name: getattr(args, name) for name in FLAGS} | {"quiet": quiet}
    kept = [name for name in FLAGS if told[name] is None]
    settings = RunSettings(**{name: value for name, value in told.items() if name not in kept})
    if args.ray:
        from memfit.survival.ray_job import run_on_ray

        return run_on_ray(args.script, args.arguments, settings, resume=args.resume, kept=kept, tell=_tell)
    seen: list[tuple[Path, RunRecord]] = []

    def report(records: Sequence[tuple[Path, "RunRecord"]]) -> None:
        seen.extend(records)
        if records and not quiet:
            _show(records)

    code = supervise(
        args.script, args.arguments, settings, resume=args.resume, kept=kept, tell=_tell, report=report
    )
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
