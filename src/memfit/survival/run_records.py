"""The records of one run as its supervisor sees them: it notes deaths, which the processes themselves cannot."""

import contextlib
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from memfit.survival.positions import Position
from memfit.survival.settings import CUSTOM_LOOP, record_id
from memfit.training.records.files import find_file, read_record, write_record
from memfit.training.records.record import DIED, FINISHED, RUNNING, Mark, RunRecord

_MOST_CALLS = 1000


class RunRecords:
    """The records of the calls of fit() of one run.

    Args:
        folder: Where they are.
        run: What their ids are made of.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._folder, self._run = folder, run

    def read(self) -> list[tuple[Path, RunRecord]]:
        """Returns the files and records of the run, in the order of the calls."""
        records = []
        for call in (CUSTOM_LOOP, *range(_MOST_CALLS)):
            file = find_file(self._folder, record_id(self._run, call))
            if file is not None:
                with contextlib.suppress(Exception):
                    records.append((file, read_record(file)))
            elif call >= 0:
                break
        return records

    def has_custom_loop(self) -> bool:
        """Whether the script was seen to train in a loop of its own."""
        return find_file(self._folder, record_id(self._run, CUSTOM_LOOP)) is not None

    def note_leaks(self, leaks: Iterable[str]) -> None:
        """Marks what was seen to leak, each as a sentence, in the record of what was trained last."""
        with contextlib.suppress(Exception):  # a record that cannot be written ends no training
            _, record = self.read()[-1]
            seconds = round(time.time() - record.begun, 2)
            marks = (Mark(seconds, "leak", says) for says in leaks)
            write_record(replace(record, marks=(*record.marks, *marks)), self._folder)

    def note_death(self, says: str, position: Position | None, goes_on: str | None) -> None:
        """Marks the death of the process in the record of what it was training.

        Args:
            says: The signal and the likely cause, as a sentence.
            position: The call, epoch and batch it died in; None where no training had begun.
            goes_on: Where it goes on once it is started again, as a sentence; None where it is not.
        """
        with contextlib.suppress(Exception):  # a record that cannot be written ends no training
            _, record = next(each for each in reversed(self.read()) if each[1].outcome != FINISHED)
            now = time.time()
            seconds = round(now - record.begun, 2)
            # The record itself is up to some seconds old.
            epoch, batch = (record.epoch, record.batch) if position is None else position[1:]
            marks = [Mark(seconds, "death", says, epoch, batch)]
            if goes_on is not None:
                marks.append(Mark(seconds, "restart", goes_on, epoch, batch))
                ended = replace(record, outcome=RUNNING, says="", ended=None)
            else:
                ended = replace(record, outcome=DIED, says=says, ended=now)
            write_record(
                replace(
                    ended,
                    updated=now,
                    marks=(*record.marks, *marks),
                    restarts=record.restarts + (goes_on is not None),
                ),
                self._folder,
            )
