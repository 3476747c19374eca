"""Compare smaller networks for the same job: training memory of each, and how close it is to the original.

    memfit slim train.py --memory 4GiB                     # runs the script up to its first fit(), and stops there
    memfit slim model.keras --batch 64 --device "RTX 3060"
    memfit slim model.keras --variant narrow --amount 0.5 --output narrow.keras

Every variant is built from the model's own weights. As many training steps are recorded as fit into a minute;
the others are predicted from layer shapes. --variant and --output write one variant. The exit code is 0 if
something fits into the given memory or device, and 1 if nothing does.
"""

import argparse
from typing import Any

from memfit.cli.common import add_json, add_output, print_json, refuse_to_overwrite
from memfit.cli.target import add_target, check_target, failures_of, target
from memfit.errors import InvalidInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_target(parser)
    parser.add_argument("--memory", help="memory to fit into, such as 4GiB")
    parser.add_argument("--device", help='a GPU to fit into, such as "RTX 3060"')
    parser.add_argument("--variant", help='build one variant, such as "narrow" or "narrow + mixed precision"')
    parser.add_argument("--amount", type=float, help="the strength of the variant (each has its own default)")
    add_output(parser, "--output", "save the variant as a Keras model (.keras)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compares and prints, or makes one variant."""
    from memfit.reporting.console import show_progress

    _check(args)
    with show_progress("building the model"):
        training = target(args)
    if args.variant is not None:
        return _make(args, training.model)
    from memfit.reporting.slimmed import describe_next
    from memfit.slimming.slimming import slim

    with show_progress("comparing variants"), failures_of(args.target):
        compared = slim(
            training.model,
            batch_size=training.batch_size,
            memory=args.memory,
            data=training.data,
            device=args.device,
        )
    if args.json:
        print_json(compared.to_json())
    else:
        print(compared, describe_next(compared, args.target), sep="\n\n")
    return 0 if compared.memory is None or compared.fitting else 1


def _check(args: argparse.Namespace) -> None:
    check_target(args)
    if args.variant is None and (args.output is not None or args.amount is not None):
        raise InvalidInput(
            "--amount and --output need --variant", remedy='Name it, such as --variant "narrow"'
        )
    if args.variant is not None:
        from memfit.slimming.variants import find_variant

        find_variant(args.variant).read_amount(args.amount)
        if args.output is None or args.output.suffix != ".keras":
            raise InvalidInput(
                "A variant is written to a file that ends in .keras",
                received=str(args.output),
                remedy="Name it with --output small.keras",
            )
        refuse_to_overwrite(args.output, args.force)


def _make(args: argparse.Namespace, model: Any) -> int:
    from memfit.reporting.console import show_progress
    from memfit.slimming.slimming import slim

    with show_progress(f"making {args.variant}"):
        made = slim(model, args.variant, args.amount, device=args.device)
        made.save(args.output)
    if args.json:
        print_json({"file": str(args.output), "parameters": made.count_params()})
    else:
        print(f"{args.output} written: {made.count_params():,} parameters, {model.count_params():,} before")
        print(f"what it takes: memfit estimate {args.output}")
    return 0
