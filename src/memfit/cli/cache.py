"""List or remove the disk caches of decoded images.

    memfit cache ls
    memfit cache rm KEY ...     # or --all; a cache in use is kept

They are in $MEMFIT_CACHE, else in the user's cache folder, and take at most $MEMFIT_CACHE_LIMIT (such as 50GiB),
else half of what is free; the longest unused makes room for a new one.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from memfit.cli.common import add_json, print_json
from memfit.errors import InvalidInput

if TYPE_CHECKING:
    from memfit.data.disk_cache import CacheEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ls|rm")
    listing = actions.add_parser("ls", help="list the caches, the most recently used first")
    add_json(listing)
    removing = actions.add_parser("rm", help="remove caches")
    removing.add_argument("keys", nargs="*", metavar="KEY", help="the caches' keys, or their first letters")
    removing.add_argument("--all", action="store_true", help="remove all that no process uses")
    for action in (listing, removing):
        action.add_argument("--folder", type=Path, help="where the caches are, if not in the usual place")


def run(args: argparse.Namespace) -> int:
    """Lists or removes; what cannot be removed is an error that says why."""
    from memfit.data.disk_cache import cache_folder

    folder = args.folder or cache_folder()
    return _list(folder, as_json=args.json) if args.action == "ls" else _remove(folder, args.keys, args.all)


def _list(folder: Path, *, as_json: bool) -> int:
    from memfit.data.disk_cache import cache_limit, entries
    from memfit.reporting.caches import describe_caches

    caches = entries(folder)
    if as_json:
        print_json([entry.to_json() for entry in caches])
    else:
        print(describe_caches(caches, cache_limit(folder), folder))
    return 0


def _remove(folder: Path, keys: list[str], everything: bool) -> int:
    from memfit.data.disk_cache import entries, remove

    if everything == bool(keys):
        raise InvalidInput(
            "Name the caches to remove, or pass --all", remedy="List them with: memfit cache ls"
        )
    there = entries(folder)
    chosen = (
        [entry.key for entry in there if not entry.in_use]
        if everything
        else [_one(key, there) for key in keys]
    )
    for key in chosen:
        remove(folder, key)
        print(f"removed {key}")
    return 0


def _one(start: str, there: "list[CacheEntry]") -> str:
    matches = [entry.key for entry in there if entry.key.startswith(start)]
    if len(matches) != 1:
        raise InvalidInput(
            "A key must name one cache",
            received=f"{start}, which matches {len(matches)}",
            remedy="List them with: memfit cache ls",
        )
    return matches[0]
