"""`memfit.watch`: the law, what holds memory, the lines, and loops of `benchmarks/leaks` that leak or do not."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import memfit
from memfit.sizes import Size
from memfit.training.leaks.holders import find_holdings
from memfit.training.leaks.judging import Track, judge
from memfit.training.leaks.law import Series, steady_rate
from memfit.training.leaks.leak import Leak, Leaks
from memfit.training.leaks.lines import LineTrace
from memfit.training.leaks.weighing import weigh_items
from prepared import forking_environment, run_forked

_TIMES = range(60)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("constant", lambda t: 100),
        ("fills up", lambda t: 10 * min(t, 25)),
        ("fills up ever slower", lambda t: int(1000 * (1 - 0.9**t))),
        ("emptied now and then", lambda t: 10 * (t % 13)),
        ("emptied once, by chance at the middle", lambda t: 10 * (t % 29)),
        ("freed at the end", lambda t: 10 * t * (t < 58)),
        ("grows only at the end", lambda t: 10 * max(t - 50, 0)),
    ],
)
def test_what_stops_or_is_freed_is_no_leak(name: str, size: Any) -> None:
    assert steady_rate(_TIMES, [size(t) for t in _TIMES]) is None


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("a line", lambda t: 10 * t),
        ("a line behind a start", lambda t: 500 * min(t, 3) + 10 * t),
        ("stairs", lambda t: 50 * (t // 5)),
        ("a line under teeth", lambda t: 10 * t + 37 * (t % 4)),
    ],
)
def test_what_grows_with_time_to_the_end_is_a_leak(name: str, size: Any) -> None:
    rate = steady_rate(_TIMES, [size(t) for t in _TIMES])
    assert rate == pytest.approx(10, rel=0.35)


def test_a_series_of_any_length_stays_short_and_keeps_its_law() -> None:
    series = Series(most=64)
    for second in range(10_000):
        series.add(second, 7 * second)
    assert len(series.times) <= 64
    assert series.times[-1] == 9_999
    assert series.rate() == pytest.approx(7, rel=0.01)


def test_an_item_weighs_what_goes_with_it_and_nothing_that_others_share() -> None:
    import numpy as np

    shared = np.zeros(10**6)
    items = [{"own": np.zeros(1000), "shared": shared} for _ in range(3)]
    weight, opaque = weigh_items(items)
    assert 8000 < weight < 10_000
    assert not opaque
    assert weigh_items([shared] * 5)[0] == 0


class _Keeper:
    def __init__(self) -> None:
        self.kept: list[int] = []


def test_holders_are_found_by_the_names_of_running_functions_down_to_attributes_and_closures() -> None:
    keeper, counts = _Keeper(), {"a": [1, 2, 3]}
    assert not keeper.kept
    assert counts

    def inner() -> list[int]:
        return hidden

    hidden = [1, 2]
    sizes = {holding.path: holding.size for holding in find_holdings(threading.get_ident())}
    assert sizes["keeper.kept"] == 0
    assert sizes["counts['a']"] == 3
    assert sizes["hidden"] == 2
    assert inner() is hidden


def test_looking_keeps_no_variable_alive() -> None:
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    find_holdings(threading.get_ident())
    del thing
    assert gone() is None


def test_the_line_that_adds_is_seen_and_functions_keep_their_variables_while_others_look() -> None:
    kept: list[int] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.001):
            find_holdings(main)

    main = threading.get_ident()
    thread = threading.Thread(target=look)
    thread.start()
    trace = LineTrace([lambda: len(kept)], most_seconds=60.0)
    assert trace.start()
    total, until = 0, time.monotonic() + 60
    while not trace.ended and time.monotonic() < until:
        total += 1
        kept.append(total)  # the line
        doubled = 2 * total
        assert doubled == 2 * total
    stop.set()
    thread.join()
    trace.stop()
    assert sys.gettrace() is None
    lines = Path(__file__).read_text().splitlines()
    marked = next(number for number, line in enumerate(lines, 1) if line.endswith("# the line"))
    assert trace.blamed[0].most_common(1)[0][0].endswith(f"test_leaks.py:{marked}")


def test_the_numbers_that_a_loop_logs_are_no_leak_and_what_holders_explain_is_told_once() -> None:
    memory = {"host": Series(), "device": Series()}
    logged, kept, same = (Track(name, "container") for name in ("logged", "kept", "same"))
    logged.item = 32
    kept.item = 1 << 20
    same.item = 1 << 19
    for second in range(60):
        memory["host"].add(second, second << 20)
        for track in (logged, kept, same):
            track.sizes.add(second, second)
    leaks = judge([logged, kept, same], memory, Counter(), 59)
    assert [(leak.holder, leak.per_minute, leak.where) for leak in leaks] == [("kept", 60 << 20, "host")]


def test_leaks_are_told_as_a_table_as_html_and_as_data() -> None:
    leak = Leak("host", "container", "losses", "/a/train.py:7", Size("5MiB"), Size("16KiB"), "Keep numbers.")
    leaks = Leaks((leak,), 61.0)
    assert repr(leaks).splitlines() == [
        "host memory grows by 5.0 MiB a minute (container)",
        "  held by   losses",
        "  grows at  /a/train.py:7",
        "  each      16.0 KiB",
        "  fix       Keep numbers.",
    ]
    assert json.loads(json.dumps(leaks.to_json()))["leaks"][0]["per_minute"] == 5 << 20
    assert "losses" in leaks._repr_html_()
    assert repr(Leaks((), 12.3)) == "No memory grows steadily (watched for 12 s)."


def _watch_loop(name: str, seconds: float) -> list[dict[str, Any]]:
    from leaks import clean, leaking

    function = getattr(leaking, name, None) or getattr(clean, name)
    with memfit.watch() as watched:
        function(seconds)
    return [leak.to_json() for leak in watched.leaks]


@pytest.mark.parametrize(
    "name",
    ["predictions_kept", "python_number_retraced", "sequence_that_caches", "array_that_is_extended"],
)
def test_a_loop_that_leaks_is_told_with_the_line(name: str) -> None:
    from leaks import leaking
    from leaks.run import marked_line

    told: list[str] = []
    wanted = marked_line(getattr(leaking, name))
    for seconds in (2.5, 6.0, 12.0):  # of processor time: on a busy machine there are fewer looks in it
        leaks = run_forked(_watch_loop, name, seconds, TF_ENABLE_ONEDNN_OPTS="0")
        told = [Path(leak["line"]).name for leak in leaks]
        if wanted in told:
            break
    assert wanted in told


@pytest.mark.parametrize("name", ["plain_fit", "cache_that_fills_up", "emptied_every_epoch", "few_shapes"])
def test_a_loop_that_does_not_leak_is_left_in_peace(name: str) -> None:
    assert run_forked(_watch_loop, name, 2.5, TF_ENABLE_ONEDNN_OPTS="0") == []


def _begin_again_and_again() -> tuple[str, int]:
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, message = np.ones((4, 2)), ""
    with memfit.watch():
        try:
            model.fit(x, x[:, :1], verbose=0, callbacks=[memfit.watch()])
        except memfit.InvalidInput as error:
            message = str(error)

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyError(epoch)

    with contextlib.suppress(KeyError):
        model.fit(x, x[:, :1], verbose=0, callbacks=[memfit.watch(), Fails()])
    watched = memfit.watch()
    model.fit(x, x[:, :1], verbose=0, callbacks=[watched])
    return message, len(watched.leaks)


def test_a_watch_inside_of_a_watch_is_refused_in_a_sentence_and_a_failed_fit_ends_its_own() -> None:
    message, leaks = run_forked(_begin_again_and_again, TF_ENABLE_ONEDNN_OPTS="0")
    assert message.startswith(
        "A watch cannot run inside another one: both would watch the same memory. Watch"
    )
    assert leaks == 0


def test_a_script_is_watched_to_its_end(tmp_path: Path) -> None:
    lines = ["import time", "import numpy", "numpy.ones(3)", "kept = []", "end = time.process_time() + 8"]
    lines += [
        "while time.process_time() < end:",
        "    sum(range(20_000))",
        "    kept.append(numpy.ones(2000))",
    ]
    (tmp_path / "script.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "memfit", "run", "--watch", "script.py"]
    environment = {**os.environ, **forking_environment()}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0
    assert "memfit:   held by   kept" in done.stderr
    assert "script.py:8" in done.stderr
