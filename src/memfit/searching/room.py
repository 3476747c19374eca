"""Who may run now: trials that share a memory, each with what it needs of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Peaks of the same step differ from run to run, with threads by up to 20%.
_MARGIN = 1.2
_LOOK_SECONDS = 1.0  # a wait is never longer, so that a signal is seen


@dataclass
class _Inside:
    """A trial that runs, or waits at its first `fit`.

    Attributes:
        reserved: What of the memory is counted as its own.
        source: What that figure is.
        stage: "looking" until what it needs is known, "waiting" for that much, "granted".
        company: Whether another one has run beside it.
    """

    reserved: int
    source: str
    stage: str = "looking"
    company: bool = False


class Room:
    """The memory that trials share.

    Before its first `fit` a trial's need is not known. If trials have ended, the largest of their measured peaks
    stands in for it; if none has, only one trial at a time is in that state, beside those whose need is known.
    So trials that never call `fit` run by themselves until the first of them has been measured.

    Args:
        memory: Bytes for all of them together.
        parallel: How many may run at the same time at most.
    """

    def __init__(self, memory: int, parallel: int) -> None:
        self._memory, self._parallel = memory, parallel
        self._inside: dict[int, _Inside] = {}
        self._waiting: list[int] = []
        self._measured = 0
        self._stopped = False
        self._changed = threading.Condition()
        self.most_inside = 0
        self.most_reserved = 0

    def enter(self, trial: int) -> bool:
        """Waits until a trial may begin; False if nothing may any more."""
        with self._wait(self._may_begin):
            if self._stopped:
                return False
            source = "measured" if self._measured and self._parallel > 1 else "not known"
            self._inside[trial] = _Inside(self._assumed(), source)
            self._note()
            return True

    def ask(self, trial: int, need: int | None, holds: int) -> bool:
        """Waits until a trial that is at its first `fit` may go on; False if nothing may any more.

        Args:
            trial: Which.
            need: What is predicted for it; None where nothing can be.
            holds: What it holds already.
        """
        inside = self._inside[trial]
        with self._changed:
            if need is not None:
                wanted, inside.source = need, "predicted"
            elif self._measured:
                wanted, inside.source = self._assumed(), "measured"
            else:
                wanted, inside.source = self._memory, "not known"
            inside.stage, inside.reserved = "waiting", holds
            self._waiting.append(trial)
            self._changed.notify_all()
        with self._wait(lambda: self._waiting[0] == trial and self._may_go_on(trial, wanted)):
            self._waiting.remove(trial)
            inside.stage, inside.reserved = "granted", wanted
            self._note()
            return not self._stopped

    def leave(self, trial: int, peak: int | None) -> tuple[int | None, str]:
        """Ends a trial; returns what was reserved for it and what that figure was, as far as any was known."""
        with self._changed:
            inside = self._inside.pop(trial)
            self._measured = max(self._measured, peak or 0)
            self._changed.notify_all()
        return (None, "") if inside.source == "not known" else (inside.reserved, inside.source)

    def begin_again_alone(self, trial: int) -> bool:
        """Ends a trial that had company, and begins it again when no other runs; None begins beside it."""
        self.leave(trial, None)
        return self.enter(trial) and self.ask(trial, need=self._memory + 1, holds=0)

    def had_company(self, trial: int) -> bool:
        """Says whether another trial has run beside one that has not left."""
        with self._changed:
            return self._inside[trial].company

    def stop(self) -> None:
        """Lets nobody in any more, and nobody wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def count(self) -> tuple[int, int]:
        """How many run and how many wait for memory."""
        with self._changed:
            return len(self._inside) - len(self._waiting), len(self._waiting)

    @contextmanager
    def _wait(self, condition: Callable[[], bool]) -> Iterator[None]:
        with self._changed:
            while not (self._stopped or condition()):
                self._changed.wait(_LOOK_SECONDS)
            yield
            self._changed.notify_all()

    def _left(self, without: int | None = None) -> int:
        return self._memory - sum(
            inside.reserved for trial, inside in self._inside.items() if trial != without
        )

    def _assumed(self) -> int:
        """What a trial of which nothing is known is taken to need."""
        return int(_MARGIN * self._measured) if self._measured else max(self._left(), 0)

    def _may_begin(self) -> bool:
        if not self._inside:
            return True
        if len(self._inside) >= self._parallel or self._waiting:
            return False
        if self._measured:
            return self._assumed() <= self._left()
        return self._left() > 0 and all(inside.stage == "granted" for inside in self._inside.values())

    def _may_go_on(self, trial: int, wanted: int) -> bool:
        running = any(inside.stage != "waiting" for inside in self._inside.values())
        return not running or wanted <= self._left(without=trial)

    def _note(self) -> None:
        running = [inside for inside in self._inside.values() if inside.stage != "waiting"]
        for inside in running if len(running) > 1 else ():
            inside.company = True
        self.most_inside = max(self.most_inside, len(running))
        if len(self._inside) > 1 and all(inside.source != "not known" for inside in self._inside.values()):
            self.most_reserved = max(self.most_reserved, self._memory - self._left())
