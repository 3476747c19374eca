"""`make fuzz`: random networks trained by stock Keras and by memfit, until some differ or all agree."""

import argparse
import datetime
import sys
import traceback
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
    tried = 0
    smallest: dict[str, str] = {}

    @seed(start)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(networks())
    def compare(network: Network) -> None:
        nonlocal tried
        tried += 1
        print(f"\r{tried} networks", end="", flush=True)
        try:
            why = find_difference(network)
        except NotTrained:
            reject()
        except Exception:  # a network that memfit does not train is a difference, whatever it raises
            why = "it fails: " + traceback.format_exc(limit=-3).strip().replace("\n", "\n# ")
        if why is not None:
            smallest["script"] = describe(network, why)
            raise AssertionError(why)

    try:
        compare()
    except BaseException:
        if not smallest:
            raise
    print()
    return tried, smallest.get("script")


def main() -> None:
    """Fuzzes, and writes what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=1 if SMOKE else 500)
    parser.add_argument("--seed", type=int, default=datetime.date.today().toordinal())
    options = parser.parse_args()
    tried, script = fuzz(options.networks, options.seed)
    write("fuzz", {"seed": options.seed, "networks": tried, "differences": int(script is not None)})
    if script is None:
        print(f"{tried} networks: no difference from stock Keras (seed {options.seed})")
        return
    Path("difference.py").write_text(script)
    print(f"{script}\nwritten to difference.py")
    sys.exit(1)


if __name__ == "__main__":
    main()
