"""`make fuzz`: random networks trained by stock Keras and by memfit, until some differ or all agree.

    python benchmarks/fuzz/run.py --networks 500 --seed 1

One process a core, each with its own seed. A process that finds a difference shrinks it to a small script.
"""

import argparse
import datetime
import multiprocessing
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hypothesis import HealthCheck, given, reject, seed, settings

from fuzz.compare import NotTrained, find_difference
from fuzz.networks import Network, networks
from machine import SMOKE, write


def describe(network: Network, why: str) -> str:
    """Writes a difference as a script that shows it again."""
    return (
        f"# {why}\n# run it in memfit's folder: PYTHONPATH=benchmarks python difference.py\n"
        "from fuzz.compare import NotTrained, find_difference\n\n"
        f"print(find_difference({network!r}))\n"
    )


def fuzz(count: int, start: int) -> tuple[int, str | None]:
    """Compares so many networks; returns how many there were, and the smallest that differs as a script."""
    compared = 0
    smallest: dict[str, str] = {}

    @seed(start)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(networks())
    def compare(network: Network) -> None:
        nonlocal compared
        try:
            why = find_difference(network)
        except NotTrained:  # by stock Keras; another one is drawn instead
            reject()
        except Exception:  # a network that memfit does not train is a difference, whatever it raises
            why = "it fails: " + traceback.format_exc(limit=-3).strip().replace("\n", "\n# ")
        compared += 1
        print(f"\r{compared} networks", end="", flush=True)
        if why is not None:
            smallest["script"] = describe(network, why)
            raise AssertionError(why)

    try:
        compare()
    except BaseException:
        if not smallest:
            raise
    print()
    return compared, smallest.get("script")


def fuzz_on_all_cores(count: int, seeds: list[int]) -> tuple[int, list[str]]:
    """Compares so many networks in one process a seed; returns how many there were, and scripts of what differs."""
    if len(seeds) == 1:
        outcomes = [fuzz(count, seeds[0])]
    else:
        shares = [count // len(seeds) + (place < count % len(seeds)) for place in range(len(seeds))]
        with ProcessPoolExecutor(len(seeds), multiprocessing.get_context("spawn")) as pool:
            outcomes = list(pool.map(fuzz, shares, seeds))
    return sum(compared for compared, _ in outcomes), [script for _, script in outcomes if script is not None]


def main() -> None:
    """Fuzzes, and writes what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", type=int, default=1 if SMOKE else 500)
    parser.add_argument("--seed", type=int, default=datetime.date.today().toordinal())
    parser.add_argument("--processes", type=int, default=1 if SMOKE else os.cpu_count() or 1)
    options = parser.parse_args()
    # Far apart, so that none is drawn again tomorrow.
    seeds = [options.seed + 10**6 * number for number in range(options.processes)]
    compared, scripts = fuzz_on_all_cores(options.networks, seeds)
    write("fuzz", {"seeds": seeds, "networks": compared, "differences": len(scripts)})
    if not scripts:
        print(f"{compared} networks: no difference from stock Keras (seeds {', '.join(map(str, seeds))})")
        return
    Path("difference.py").write_text(scripts[0])
    print(f"{scripts[0]}\nwritten to difference.py")
    sys.exit(1)


if __name__ == "__main__":
    main()
