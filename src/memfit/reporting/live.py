"""`memfit top`: the trainings of this machine, live in a terminal."""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from memfit.budgets.memory import Memory
from memfit.reporting.runs import describe_seconds
from memfit.sizes import Size
from memfit.training.records.watching import Snapshot, Training

_SECONDS = 1.0  # between two looks; runs write their records every two seconds at the most
_BAR = 10  # so that the longest line, the device's, fits into 80 columns
_STALE = 30.0  # seconds without a new record after which it is said


def watch(look: Callable[[], Snapshot], screen: Console) -> None:
    """Shows the machine again and again until `q` or Ctrl-C."""
    with _keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as live:
        while True:
            live.update(draw_snapshot(look(), live=True), refresh=True)
            if pressed(_SECONDS):
                return


def draw_snapshot(snapshot: Snapshot, *, live: bool = False) -> Group:
    """Returns a machine's memories, its trainings, and what else is on its GPUs."""
    when = time.strftime("%H:%M:%S", time.localtime(snapshot.taken))
    lines = [Text.from_markup(f"[bold]memfit top[/]  {when}" + ("  [dim]q quits[/]" if live else ""))]
    lines += [_draw_memory(memory) for memory in (*snapshot.budget.devices, snapshot.budget.host)]
    if not snapshot.trainings:
        lines += [Text(), Text("No memfit training is running on this machine.")]
    for training in snapshot.trainings:
        lines += [Text(), *_draw_training(training)]
    if snapshot.others:
        lines += [Text(), Text("other processes on GPUs", style="bold")]
    for other in snapshot.others:
        used = "not reported by the driver" if other.process.used is None else str(other.process.used)
        lines.append(Text(f"  {other.process.gpu}  {used}  {other.name} (pid {other.process.pid})"))
    if live:  # a line that goes on in the next would push the last ones out of the screen
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _draw_memory(memory: Memory) -> Text:
    used = Size(memory.total - memory.free)
    text = f"{used} of {memory.total} in use [dim]({escape(memory.source)})[/]"
    return Text.from_markup(f"  {escape(memory.name):<8.24} {_bar(used, memory.total)} {text}")


def _draw_training(training: Training) -> list[Text]:
    record = training.record
    named = " ".join(
        filter(None, (record.model or "training", f"({record.script})" if record.script else ""))
    )
    took = describe_seconds(record.seconds + training.age)
    about = f"batch size {record.batch_size or '?'}, {took}, pid {record.process.pid}"
    lines = [f"[bold]{record.id}[/]  {escape(named)}, {about}"]
    lines.append(f"  device   {_draw_device(training)}")
    host = f"{training.host} now, limit {training.limit.total} [dim]({escape(training.limit.source)})[/]"
    lines.append(f"  host     {_bar(training.host, training.limit.total)} {host}")
    lines.append(f"  progress {_tell_progress(training)}")
    shortages = len(record.of_kind("out of memory"))
    if shortages or record.restarts:
        lines.append(f"  [yellow]events   out of memory: {shortages}, restarts: {record.restarts}[/]")
    if training.leak:
        lines.append(f"  [bold yellow]leak     {escape(training.leak)}[/]")
    if training.age > _STALE:
        lines.append(
            f"  [yellow]No news for {describe_seconds(training.age)}: it is computing a long step, or hangs.[/]"
        )
    return [Text.from_markup(line) for line in lines]


def _draw_device(training: Training) -> str:
    record, now = training.record, training.device_now
    whole = record.memory or record.predicted or record.device_peak
    told = [
        f"{now} now" if now is not None else "",
        f"peak {record.device_peak}" if record.device_peak is not None else "",
        f"predicted {record.predicted}" if record.predicted is not None else "not predicted",
        f"budget {record.memory}" if record.memory is not None else "",
        f"driver {training.gpu}" if training.gpu is not None else "",
    ]
    if record.device_peak is None:
        return f"not counted on {record.device}; " + ", ".join(filter(None, told))
    over = record.predicted is not None and record.device_peak > record.predicted
    return f"{_bar(now or Size(0), whole or 1, warn=over)} " + ", ".join(filter(None, told))


def _tell_progress(training: Training) -> str:
    record = training.record
    if record.epoch is None:
        return "before the first batch"
    epochs, per_epoch = record.facts.get("epochs"), record.facts.get("steps_per_epoch")
    told = f"epoch {record.epoch + 1}{f' of {epochs}' if epochs else ''}"
    told += f", batch {record.batch}{f' of {per_epoch}' if per_epoch else ''}"
    return told if record.step_seconds is None else f"{told}, {describe_seconds(record.step_seconds)} a step"


def _bar(used: int, whole: int, *, warn: bool = False) -> str:
    part = min(1.0, used / whole) if whole else 0.0
    filled = round(part * _BAR)
    colour = "red" if part > 0.97 else "yellow" if warn or part > 0.9 else "green"
    return f"[{colour}]{'█' * filled}[/][dim]{'░' * (_BAR - filled)}[/]"


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Gives what waits some seconds and tells whether `q` was pressed; keys are read one by one and not shown."""
    if not sys.stdin.isatty():

        def wait(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield wait
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)

    def pressed(seconds: float) -> bool:
        ready, _, _ = select.select([handle], [], [], seconds)
        keys = os.read(handle, 64) if ready else b"-"  # nothing at all is the end of the terminal
        return not keys or b"q" in keys.lower()

    try:
        tty.setcbreak(handle)
        yield pressed
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
