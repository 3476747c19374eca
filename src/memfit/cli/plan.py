"""Find the smallest changes that make a training fit: gradient accumulation, activation checkpointing, and others.

    memfit plan train.py --memory 8GiB                 # runs the script up to its first fit(), and plans for it
    memfit plan model.keras --batch 256 --device "RTX 3060" --allow near
    memfit plan model.keras --batch 2048 --ranks 8 --device "A100 40GB"    # 8 devices, each with 1/8 of a batch

The most faithful plan wins, and of equally faithful ones the fastest; --allow says how far it may go. The exit
code is 0 if there is a plan, and 1 if nothing allowed fits.
"""

import argparse

from memfit.cli.common import add_allow, add_json, add_output, print_json, refuse_to_overwrite
from memfit.cli.target import add_target, check_target, failures_of, target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_target(parser)
    parser.add_argument("--memory", help="memory to fit into, such as 8GiB (default: what is free)")
    parser.add_argument("--device", help='a GPU to fit into, such as "RTX 3060"')
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        metavar="N",
        help="number of devices that train together, each with its part of the batch",
    )
    parser.add_argument(
        "--shard-optimizer",
        action="store_true",
        help="each rank may keep a part of the optimizer's state",
    )
    add_allow(parser)
    parser.add_argument("--max-batch", action="store_true", help="plan for the largest batch that fits")
    add_output(parser, "--output", "save the plan as JSON, for memfit.fit")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Plans and prints."""
    from memfit.reporting.console import show_progress
    from memfit.reporting.plans import describe_use

    check_target(args)
    refuse_to_overwrite(args.output, args.force)
    with show_progress("building the model"):
        training = target(args)
    from memfit.planning.planning import plan  # with TensorFlow, which the script may configure first

    with show_progress("planning", "looking at the model"), failures_of(args.target):
        chosen = plan(
            training.model,
            "max" if args.max_batch else training.batch_size,
            memory=args.memory,
            allow=args.allow,
            data=training.data,
            validation_batch_size=training.validation_batch_size,
            device=args.device,
            ranks=args.ranks,
            shard_optimizer=args.shard_optimizer,
        )
    if args.output is not None:
        chosen.save(args.output)
    if args.json:
        print_json(chosen.to_json())
    else:
        print(chosen, describe_use(chosen, args.output), sep="\n\n")
    return 0
