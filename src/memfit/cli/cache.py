"""List or remove disk caches: decoded images, and earlier estimates and plans.

    memfit cache ls
    memfit cache rm KEY ...     # or --all; a cache in use is kept

They are in $MEMFIT_CACHE, or in the user's cache folder. Images take at most $MEMFIT_CACHE_LIMIT (such as
50GiB), or half of the free disk space; the least recently used cache is removed first. MEMFIT_CACHE=0 turns off
the cache of estimates and plans.
"""

import argparse
from pathlib import Path

from memfit.cli.common import add_json, print_json
from memfit.errors import InvalidInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ls|rm")
    listing = actions.add_parser("ls", help="list the caches, the most recently used first")
    add_json(listing)
    removing = actions.add_parser("rm", help="remove caches")
    removing.add_argument(
        "keys", nargs="*", metavar="KEY", help="keys of the caches, or the beginning of a key"
    )
    removing.add_argument("--all", action="store_true", help="remove all caches that are not in use")
    for action in (listing, removing):
        action.add_argument("--folder", type=Path, help="the folder of the caches (default: the usual place)")


def run(args: argparse.Namespace) -> int:
    """Lists or removes; what cannot be removed is an error that says why."""
    from memfit.data.disk_cache import cache_folder

    folder = args.folder or cache_folder()
    return _list(folder, as_json=args.json) if args.action == "ls" else _remove(folder, args.keys, args.all)


def _list(folder: Path, *, as_json: bool) -> int:
    from memfit.data.disk_cache import cache_limit, entries
    from memfit.estimation import cache
    from memfit.reporting.caches import describe_caches, describe_estimates

    caches, estimates = entries(folder), cache.entries(folder)
    if as_json:
        print_json([*(entry.to_json() for entry in caches), *(entry.to_json() for entry in estimates)])
    else:
        print(describe_caches(caches, cache_limit(folder), folder))
        if estimates:
            print(describe_estimates(estimates))
    return 0


def _remove(folder: Path, keys: list[str], everything: bool) -> int:
    from memfit.data.disk_cache import entries, remove
    from memfit.estimation import cache

    if everything == bool(keys):
        raise InvalidInput(
            "Name the caches to remove, or pass --all", remedy="List them with: memfit cache ls"
        )
    in_use = {entry.key: entry.in_use for entry in entries(folder)}
    estimates = [entry.key for entry in cache.entries(folder)]
    there = [*in_use, *estimates]
    chosen = (
        [key for key in there if not in_use.get(key)] if everything else [_one(key, there) for key in keys]
    )
    for key in chosen:
        if key in in_use:
            remove(folder, key)
        else:
            cache.remove(key, folder)
        print(f"removed {key}")
    return 0


def _one(start: str, there: list[str]) -> str:
    matches = [key for key in there if key.startswith(start)]
    if len(matches) != 1:
        raise InvalidInput(
            "A key must name one cache",
            received=f"{start}, which matches {len(matches)}",
            remedy="List them with: memfit cache ls",
        )
    return matches[0]
