"""Show what changed between two runs, estimates or plans: the peak, by kind and by layer.

    memfit compare last-1 last                            # two runs, as `memfit runs` names them
    memfit compare before.json after.json --html diff.html
    memfit compare main.json branch.json --fail-if-peak-grows 5%      # for CI

Files are what `memfit estimate --json` and `memfit plan --output` write, or the record of a run. The exit code
is 1 if the peak grows by more than --fail-if-peak-grows: the measured one where both have it, else the
predicted.
"""

import argparse

from memfit.cli.common import add_json, add_output, print_json, refuse_to_overwrite
from memfit.errors import InvalidInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("before", metavar="A", help="a run, or a JSON file of a run, an estimate or a plan")
    parser.add_argument("after", metavar="B", help="what to compare with it")
    parser.add_argument(
        "--fail-if-peak-grows", metavar="PERCENT", help="exit with 1 beyond this, such as 5%%"
    )
    add_output(parser, "--html", "write the comparison as an HTML page")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compares and prints."""
    from memfit.reporting.comparison import comparison_page, describe_comparison
    from memfit.training.records.comparing import compare

    limit = None if args.fail_if_peak_grows is None else _read_percentage(args.fail_if_peak_grows)
    refuse_to_overwrite(args.html, args.force)
    compared = compare(args.before, args.after)
    fails = limit is not None and compared.grows_beyond(limit)
    if args.html is not None:
        args.html.write_text(comparison_page(compared), encoding="utf-8")
    if args.json:
        print_json(compared.to_json())
    else:
        print(describe_comparison(compared))
        if args.html is not None:
            print(f"\npage written to {args.html}")
        if fails:
            print(f"\nThat is more than {args.fail_if_peak_grows} allows.")
    return 1 if fails else 0


def _read_percentage(text: str) -> float:
    try:
        percentage = float(text.removesuffix("%"))
    except ValueError:
        percentage = -1.0
    if not 0 <= percentage < float("inf"):
        raise InvalidInput("--fail-if-peak-grows is a percentage", received=text, remedy="Write it as 5%")
    return percentage / 100
