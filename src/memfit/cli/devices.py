"""List the GPUs that you can estimate and plan for, without having one.

    memfit devices

Use a name with --device: memfit estimate train.py --device "A100 40GB". For GPUs with specifications XLA's
compiler can be asked (memfit[gpu-compiler]); of the others only the memory is known. To add a GPU, put a file
into the folder that is shown at the end.
"""

import argparse

from memfit.cli.common import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the table."""
    from memfit.budgets.device_specs import user_folder
    from memfit.budgets.gpu_table import known_gpus
    from memfit.reporting.devices import describe_gpus

    gpus = known_gpus()
    if args.json:
        print_json([gpu.to_json() for gpu in gpus])
    else:
        print(describe_gpus(gpus, _compiler(), user_folder()))
    return 0


def _compiler() -> str:
    from memfit.estimation.gpu_compiler.compiled import NotCompiled
    from memfit.estimation.gpu_compiler.compiling import compiler_version

    try:
        return f"XLA, {compiler_version()}"
    except NotCompiled as reason:
        return str(reason)
