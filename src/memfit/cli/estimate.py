"""Predict the peak memory of a training before it runs, and show what it is made of.

    memfit estimate train.py --batch 64 --memory 8GiB      # runs the script up to its first fit(), and stops there
    memfit estimate model.keras --optimizer adam --batch 64 --device "RTX 3060"

A few small steps are recorded in another process on this machine's CPU. For a device, with memfit[gpu-compiler]
installed, the GPU's own compiler is asked instead, which needs no GPU. The exit code is 0 if the training fits into
the memory or the device named, 1 if it does not.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit.cli.target import add_target, failures_of, target
from memfit.errors import InvalidInput

if TYPE_CHECKING:
    from memfit.estimation.estimate import Estimate
    from memfit.sizes import Size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_target(parser)
    parser.add_argument("--memory", help="memory to fit into, such as 8GiB")
    parser.add_argument("--device", help='a GPU to fit into, such as "RTX 3060"')
    parser.add_argument("--phases", action="store_true", help="also predict validation and prediction")
    parser.add_argument("--json", action="store_true", help="print plain data for programs")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the timeline of a step as an HTML file"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the HTML file")


def run(args: argparse.Namespace) -> int:
    """Estimates and prints; says whether it fits where a memory or a device is named."""
    from memfit.budgets.gpu_table import gpu
    from memfit.estimation.estimating import estimate
    from memfit.reporting.console import working
    from memfit.sizes import Size

    memory = None if args.memory is None else Size(args.memory)
    if args.device is not None and memory is None:
        memory = gpu(args.device).usable
    if args.html is not None and args.html.exists() and not args.force:
        raise InvalidInput("The file exists", received=str(args.html), remedy="Overwrite it with --force")
    with working("Building the model"):
        model, data, batch = target(args)
    compiling = f"Asking the compiler for {args.device}, or recording a few small steps"
    with working(compiling if args.device else "Recording a few small steps"), failures_of(args.target):
        est = estimate(model, batch, data=data, device=args.device)
    fits = memory is None or bool(est.fits(memory))
    with working("Looking for the largest batch"):
        largest = None if memory is None else est.max_batch(memory)
    if args.html is not None:
        est.plot(args.html, memory=memory)
    if args.json:
        print(json.dumps(_json(est, memory, fits, largest, args.phases), indent=2))
    else:
        print(est)
        _print_rest(args, est, memory, fits, largest)
    return 0 if fits else 1


def _json(
    est: "Estimate", memory: "Size | None", fits: bool, largest: int | None, phases: bool
) -> dict[str, Any]:
    found = est.to_json()
    if memory is not None:
        found["memory"], found["fits"], found["max_batch"] = int(memory), fits, largest
    if phases:
        found["phases"] = {e.phase: e.to_json() for e in (est.validate, est.predict)}
    return found


def _print_rest(
    args: argparse.Namespace,
    est: "Estimate",
    memory: "Size | None",
    fits: bool,
    largest: int | None,
) -> None:
    if args.phases:
        print()
        for other in (est.validate, est.predict):
            print(f"{other.phase}: peak {other.peak}, needs {other.needed}")
    if memory is not None:
        where = f"{args.device} ({memory} usable)" if args.device and not args.memory else str(memory)
        print()
        print(
            f"{where}: batch {est.batch_size} {'fits' if fits else 'does not fit'};"
            f" largest batch that fits: {largest}"
        )
        if not fits:
            print(
                f"to make it fit: memfit plan {args.target} --batch {est.batch_size} {_where(args, memory)}"
            )
    if args.html is not None:
        print(f"timeline written to {args.html}")


def _where(args: argparse.Namespace, memory: "Size") -> str:
    if args.device and not args.memory:
        return f'--device "{args.device}"'
    return f"--memory {args.memory or f'{memory // 2**20}MiB'}"
