"""Find mistakes in a script's tf.data pipelines that cost memory, time or data, without training.

The script runs up to its first fit(). The datasets' graphs are read; no data is.

    memfit lint train.py
    memfit lint --host 16GiB train.py --epochs 3       # arguments after the script are the script's own

The exit code is 0 if nothing was found, 1 if there are findings, 2 for wrong usage.
"""

import argparse
from dataclasses import replace
from typing import Any

from memfit.cli.common import add_json, add_script, print_json
from memfit.sizes import check_memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--host", help="assume a host with this much memory, such as 16GiB")
    parser.add_argument("--batch-memory", help="the size of one batch, if the shapes are not known")
    add_json(parser)
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the findings; 1 where there are some."""
    from memfit.survival.first_fit import first_fit

    for memory in (args.host, args.batch_memory):
        check_memory(memory)
    call = first_fit(args.script, args.arguments, quiet=args.json)
    from memfit.data.linting.lint import lint  # with TensorFlow, which the script may configure first

    datasets = _datasets(call.arguments)
    findings = lint(*datasets.values(), batch_memory=args.batch_memory, host=args.host)
    findings = replace(findings, names=tuple(datasets))
    if args.json:
        print_json(findings.to_json())
    elif not datasets:
        print("fit() receives no tf.data dataset: there is no pipeline to lint.")
        print("Arrays can be fed without a second copy: memfit.arrays(x, y, batch_size=...)")
    else:
        print(findings)
    return 1 if len(findings) else 0


def _datasets(arguments: dict[str, Any]) -> dict[str, Any]:
    """The datasets that fit() would receive, by what a person calls them."""
    import tensorflow as tf

    names = {"training data": arguments.get("x"), "validation data": arguments.get("validation_data")}
    return {name: data for name, data in names.items() if isinstance(data, tf.data.Dataset)}
