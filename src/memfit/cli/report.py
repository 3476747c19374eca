"""Write one run as an HTML page that opens offline: what was predicted, what was measured, what happened.

    memfit report                      # the last run
    memfit report 3fa9 --output run.html

`memfit runs` lists the runs.
"""

import argparse
from pathlib import Path

from memfit.cli.common import add_output, refuse_to_overwrite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "run_name",
        metavar="RUN",
        nargs="?",
        default="last",
        help="its id, `last`, `last-1`, or the file of its record (default: last)",
    )
    add_output(parser, "--output", "the file to write (default: memfit-report-ID.html)")


def run(args: argparse.Namespace) -> int:
    """Writes the page and says where."""
    from memfit.reporting.report import report_page
    from memfit.training.records.files import find_record

    _, record = find_record(args.run_name)
    file = args.output or Path(f"memfit-report-{record.id}.html")
    refuse_to_overwrite(file, args.force)
    file.write_text(report_page(record), encoding="utf-8")
    print(f"report of run {record.id} written to {file}")
    return 0
