"""Choose what to change so that a training fits: the most faithful levers, and of those the fastest.

    memfit plan train.py --memory 8GiB                 # runs the script up to its first fit(), and plans for it
    memfit plan model.keras --batch 256 --device "RTX 3060" --allow near

The exit code is 0 if there is a plan, 1 if nothing that is allowed fits.
"""

import argparse
import json
from pathlib import Path

from memfit.cli.target import add_target, failures_of, target
from memfit.errors import InvalidInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_target(parser)
    parser.add_argument("--memory", help="memory to fit into, such as 8GiB (default: what is free here)")
    parser.add_argument("--device", help='a GPU to fit into, such as "RTX 3060"')
    parser.add_argument(
        "--allow",
        default="near",
        choices=["exact", "near", "precision", "model"],
        help="the farthest a change may go (default: near)",
    )
    parser.add_argument("--max-batch", action="store_true", help="plan for the largest batch that fits")
    parser.add_argument("--output", type=Path, metavar="FILE", help="save the plan as JSON, for memfit.fit")
    parser.add_argument("--force", action="store_true", help="overwrite the saved plan")
    parser.add_argument("--json", action="store_true", help="print plain data for programs")


def run(args: argparse.Namespace) -> int:
    """Plans and prints."""
    from memfit.budgets.gpu_table import gpu
    from memfit.planning.planning import plan
    from memfit.reporting.console import working

    if args.output is not None and args.output.exists() and not args.force:
        raise InvalidInput("The file exists", received=str(args.output), remedy="Overwrite it with --force")
    if args.device is not None:
        gpu(args.device)  # a name that is not known is told before the model is built
    with working("Building the model"):
        model, data, batch = target(args)
    with working("Recording a few small steps and searching"), failures_of(args.target):
        found = plan(
            model,
            "max" if args.max_batch else batch,
            memory=args.memory,
            allow=args.allow,
            data=data,
            device=args.device,
        )
    if args.output is not None:
        found.save(args.output)
    if args.json:
        print(json.dumps(found.to_json(), indent=2))
        return 0
    print(found)
    print()
    if args.output is not None:
        print(f"to train with it: memfit.fit(model, ..., plan=memfit.Plan.load({str(args.output)!r}))")
    else:
        gibibytes, rest = divmod(found.memory, 2**30)
        size = f"{found.memory // 2**20}MiB" if rest else f"{gibibytes}GiB"
        print(f"to train with it: memfit.fit(model, ..., batch_size={found.batch_size}, memory={size!r})")
    return 0
