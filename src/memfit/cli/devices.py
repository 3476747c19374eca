"""List the GPUs that a training can be estimated and planned for, with or without having one.

    memfit devices

Those with specifications can be compiled for: memfit estimate train.py --device "A100 40GB". Of the others only
the memory is known. A file in the user's folder (shown at the end) adds a GPU.
"""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print plain data for programs")


def run(args: argparse.Namespace) -> int:
    """Prints the table."""
    from dataclasses import asdict

    from memfit.budgets.device_specs import user_folder
    from memfit.budgets.gpu_table import known_gpus
    from memfit.estimation.gpu_compiler.installed import compiler_version
    from memfit.estimation.gpu_compiler.refusal import NotCompiled
    from memfit.sizes import Size
    from memfit.tables import table

    cards = known_gpus()
    if args.json:
        rows = [
            {"name": card.name, "memory_mib": card.mib, "specs": card.specs and asdict(card.specs)}
            for card in cards
        ]
        print(json.dumps(rows, indent=2))
        return 0
    described = [
        [
            card.name,
            Size(card.mib * 2**20),
            card.specs.compute_capability,
            card.specs.sms,
            f"{card.specs.bandwidth_gb_s:.0f} GB/s",
            card.specs.source,
        ]
        for card in cards
        if card.specs is not None
    ]
    head = ["GPU", "memory", "capability", "SMs", "bandwidth", "source of the specifications"]
    print(table(described, head=head, right=[1, 2, 3, 4]))
    print()
    print("memory only (figures known by heart, not looked up): ", end="")
    print(", ".join(card.name for card in cards if card.specs is None))
    print()
    try:
        print(f"compiler: XLA, {compiler_version()}")
    except NotCompiled as reason:
        print(f"compiler: {reason}")
    print(f"to add a GPU: put a file such as memfit's own into {user_folder()}")
    print('to ask about one: memfit estimate train.py --device "A100 40GB"')
    return 0
