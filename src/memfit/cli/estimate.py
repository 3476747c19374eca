"""Predict the peak memory of a training before it runs, and show where it goes.

    memfit estimate train.py --batch 64 --memory 8GiB      # runs the script up to its first fit(), and stops there
    memfit estimate model.keras --optimizer adam --batch 64 --device "RTX 3060"

A few small steps are recorded in another process on this machine's CPU. With --device and memfit[gpu-compiler],
XLA's compiler for that GPU is asked instead; it needs no GPU. A script with a custom training loop is run for
ten updates and measured. The exit code is 0 if the training fits into the given memory or device, and 1 if it
does not.
"""

import argparse
import logging
from typing import Any

from memfit.cli.common import add_json, add_output, print_json, refuse_to_overwrite
from memfit.cli.target import add_target, check_target, failures_of, target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_target(parser)
    parser.add_argument("--memory", help="memory to fit into, such as 8GiB")
    parser.add_argument("--device", help='a GPU to fit into, such as "RTX 3060"')
    parser.add_argument("--phases", action="store_true", help="also estimate validation and prediction")
    add_json(parser)
    add_output(parser, "--html", "write the timeline of a step as an HTML file")


def run(args: argparse.Namespace) -> int:
    """Estimates and prints; says whether it fits where a memory or a device is named."""
    from memfit.budgets.gpu_table import gpu
    from memfit.reporting.console import show_progress
    from memfit.reporting.timeline import plot
    from memfit.sizes import Size
    from memfit.survival.first_fit import TrainsInLoop

    check_target(args)
    memory = None if args.memory is None else Size(args.memory)
    if args.device is not None and memory is None:
        memory = gpu(args.device).usable
    refuse_to_overwrite(args.html, args.force)
    try:
        with show_progress("building the model"):
            training = target(args)
    except TrainsInLoop:
        return _measure_loop(args, memory)
    from memfit.estimation.estimating import estimate

    stages = logging.getLogger("memfit.progress")
    with show_progress("estimating", "looking at the model"), failures_of(args.target):
        estimated = estimate(training.model, training.batch_size, data=training.data, device=args.device)
        stages.info("replaying them in less and less memory")
        # What is printed below is computed here, where it is told that something is going on.
        phases = (estimated.validate, estimated.predict) if args.phases else ()
        _ = [phase.needed for phase in (estimated, *phases)]
        stages.info("looking for the largest batch")
        largest = None if memory is None else estimated.max_batch(memory)
    if args.html is not None:
        plot(estimated, args.html, memory=memory)
    if args.json:
        print_json(_to_json(estimated, memory, largest, args.phases))
    else:
        _print(args, estimated, memory, largest)
    return 0 if memory is None or estimated.fits(memory) else 1


def _measure_loop(args: argparse.Namespace, memory: int | None) -> int:
    """Measures the first updates of a script's own loop, and says whether they fit."""
    from pathlib import Path

    from memfit.reporting.console import show_progress
    from memfit.survival.measured_loop import measure_loop

    with show_progress("running the first updates of a custom loop"):
        measured = measure_loop(Path(args.target), args.arguments, quiet=True)
    fits = memory is None or measured.peak <= memory
    if args.json:
        print_json(measured.to_json() | ({} if memory is None else {"memory": int(memory), "fits": fits}))
        return 0 if fits else 1
    print(measured)
    if memory is not None:
        print("", f"{'fits into' if fits else 'does not fit into'} {args.memory or memory}", sep="\n")
    return 0 if fits else 1


def _to_json(estimated: Any, memory: int | None, largest: int | None, phases: bool) -> dict[str, Any]:
    from memfit.estimation.step_timeline import timeline_of

    plain: dict[str, Any] = estimated.to_json()
    plain["shares"] = timeline_of(estimated).to_json()["shares"]
    if memory is not None:
        plain.update(memory=int(memory), fits=bool(estimated.fits(memory)), max_batch=largest)
    if phases:
        plain["phases"] = {other.phase: other.to_json() for other in (estimated.validate, estimated.predict)}
    return plain


def _print(args: argparse.Namespace, estimated: Any, memory: Any, largest: int | None) -> None:
    from memfit.reporting.estimates import describe_fit, describe_phases, write_size

    print(estimated)
    if args.phases:
        print("", describe_phases(estimated), sep="\n")
    if memory is not None and largest is not None:
        device = None if args.memory else args.device
        print("", describe_fit(estimated, memory, largest, device), sep="\n")
        if not estimated.fits(memory):
            room = f'--device "{device}"' if device else f"--memory {args.memory or write_size(memory)}"
            print(f"to make it fit: memfit plan {args.target} --batch {estimated.batch_size} {room}")
    if args.html is not None:
        print(f"timeline written to {args.html}")
