"""Twenty loops that leak and twenty that do not: which are told, with the line, and what watching costs.

Every loop runs in a process of its own, for some seconds of processor time, so that other work on the machine, the
loops beside it included, changes little. The cost is the processor time that watching itself took, its thread's and
that of tracing lines, as a share of the time that went by.

    python benchmarks/leaks/run.py [NAME ...]
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import SMOKE, write
from memfit.budgets.fork_server import ForkServer
from memfit.tables import table

SECONDS = 0.5 if SMOKE else 5.0
# A turn that trains a model takes a second: it needs as many turns as others.
SLOW = {"models_trained_and_deleted": 4}
AT_ONCE = 3
MODULES = ("tensorflow", "keras", "memfit.training.leaks.watch")


def watch_loop(name: str, seconds: float, folder: str) -> dict[str, Any]:
    """Runs a loop under watch: what was told, what it cost."""
    import sys
    import time
    from pathlib import Path

    sys.path.insert(0, folder)

    import memfit
    from leaks import clean, leaking

    function = getattr(leaking, name, None) or getattr(clean, name)
    begun = time.perf_counter(), time.process_time()
    watched = memfit.watch()
    with watched:
        watcher: Any = watched._watcher
        function(seconds)
    passed = min(time.perf_counter() - begun[0], time.process_time() - begun[1])
    # No path of this machine goes into the results.
    repository = str(Path(folder).parent) + "/"
    leaks = [{**leak.to_json(), "line": leak.line.removeprefix(repository)} for leak in watched.leaks]
    return {
        "leaks": leaks,
        "cost": watcher.costs.total() / passed,
        "seconds": time.perf_counter() - begun[0],
        "processor_seconds": time.process_time() - begun[1],
    }


def compare_times(turns: int, rounds: int, folder: str) -> dict[str, float]:
    """The same work with a watch and without, in turn: the least processor time of each."""
    import sys
    import time

    sys.path.insert(0, folder)
    import memfit
    from leaks.loops import batch, network

    model, (x, y) = network(), batch()
    kept = []

    def work() -> float:
        begun = time.process_time()
        for _ in range(turns):
            model.train_on_batch(x, y)
            kept.append(model(x))
        kept.clear()
        return time.process_time() - begun

    def watched() -> float:
        begun = time.process_time()
        with memfit.watch():
            work()
        return time.process_time() - begun

    work()
    ways = {"stock": work, "stock again": work, "watched": watched}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in (list(ways) * 2)[number % 3 : number % 3 + 3]:
            seconds[way].append(ways[way]())
    return {way: min(each) for way, each in seconds.items()}


def marked_line(function: Callable[..., Any]) -> str:
    """Returns the next line from a function's beginning on, or before it in what it uses, that is marked."""
    file = inspect.getsourcefile(function)
    source = Path(str(file)).read_text().splitlines()
    begin = function.__code__.co_firstlineno
    end = begin + len(inspect.getsource(function).splitlines())
    marks = [number for number, line in enumerate(source, 1) if line.endswith("# LEAK")]
    inside = [number for number in marks if begin <= number < end]
    number = inside[0] if inside else max(number for number in marks if number < begin)
    return f"{Path(str(file)).name}:{number}"


def _watch_all(names: list[str]) -> Iterator[dict[str, Any]]:
    tasks = [(name, SECONDS * SLOW.get(name, 1), str(Path(__file__).parents[1])) for name in names]
    if SMOKE:
        yield from (watch_loop(*task) for task in tasks)
        return
    with ForkServer(MODULES, {}) as server, ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(lambda task: server.run(watch_loop, task, timeout=600), tasks)


def _run(function: Callable[..., Any], task: tuple[Any, ...]) -> Any:
    if SMOKE:
        return function(*task)
    with ForkServer(MODULES, {}) as server:
        return server.run(function, task)


def main() -> None:
    """Runs the loops and prints what was told."""
    from leaks.clean import CLEAN
    from leaks.leaking import LEAKING

    asked = sys.argv[1:]
    figures: list[dict[str, Any]] = []
    loops = LEAKING[:1] + CLEAN[:1] if SMOKE else LEAKING + CLEAN
    loops = [function for function in loops if not asked or function.__name__ in asked]
    for function, seen in zip(loops, _watch_all([function.__name__ for function in loops]), strict=True):
        name = function.__name__
        line = marked_line(function) if function in LEAKING else ""
        told = [Path(leak["line"]).name for leak in seen["leaks"]]
        right = line in told if line else not told
        figures.append({"loop": name, "leaks_at": line, "right": right, **seen})
        holder = "; ".join(f"{leak['holder']} ({leak['kind']})" for leak in seen["leaks"])
        print(f"{'ok ' if right else 'BAD'} {name:28} {line:15} told: {', '.join(told)} {holder}", flush=True)
    leaking = [figure for figure in figures if figure["leaks_at"]]
    clean = [figure for figure in figures if not figure["leaks_at"]]
    rows = [
        ["leaks told", f"{sum(bool(f['leaks']) for f in leaking)} of {len(leaking)}"],
        ["leaks told with the line", f"{sum(f['right'] for f in leaking)} of {len(leaking)}"],
        ["clean loops without an alarm", f"{sum(f['right'] for f in clean)} of {len(clean)}"],
        ["cost, mean and most", f"{_mean(figures):.2%}, {max(f['cost'] for f in figures):.2%}"],
    ]
    print(table(rows))
    turns, rounds = (2, 1) if SMOKE else (600, 6)
    times = _run(compare_times, (turns, rounds, str(Path(__file__).parents[1])))
    noise, ratio = (times[way] / times["stock"] for way in ("stock again", "watched"))
    print(f"The same work in processor time: watched {ratio:.3f}x stock, stock again {noise:.3f}x")
    print("Wanted: at least 18 of 20 with the line, no alarm, less than 3% of the time.")
    if not asked:
        print(f"Written to {write('leaks', {'loops': figures, 'processor_time': times})}")


def _mean(figures: list[dict[str, Any]]) -> float:
    return sum(float(figure["cost"]) for figure in figures) / len(figures)


if __name__ == "__main__":
    main()
