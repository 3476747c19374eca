"""The records of one run as its supervisor sees them: it notes deaths, which the processes themselves cannot."""

import contextlib
import time
from dataclasses import replace
from pathlib import Path

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
        found = []
        for call in (CUSTOM_LOOP, *range(_MOST_CALLS)):
            file = find_file(self._folder, record_id(self._run, call))
            if file is not None:
                with contextlib.suppress(Exception):
                    found.append((file, read_record(file)))
            elif call >= 0:
                break
        return found

    def has_custom_loop(self) -> bool:
        """Whether the script was seen to train in a loop of its own."""
        return find_file(self._folder, record_id(self._run, CUSTOM_LOOP)) is not None

    def note_death(self, says: str, *, restarts: bool) -> None:
        """Marks the death of the process in the record of what it was training.

        Args:
            says: The signal and the likely cause, as a sentence.
            restarts: Whether the script is started again.
        """
        with contextlib.suppress(Exception):  # a record that cannot be written ends no training
            _, record = next(each for each in reversed(self.read()) if each[1].outcome != FINISHED)
            now = time.time()
            seconds = round(now - record.begun, 2)
            marks = [Mark(seconds, "death", says, record.epoch, record.batch)]
            if restarts:
                marks.append(Mark(seconds, "restart", "Started again.", record.epoch, record.batch))
            ended = replace(record, outcome=RUNNING, says="", ended=None)
            if not restarts:
                ended = replace(record, outcome=DIED, says=says, ended=now)
            write_record(
                replace(
                    ended,
                    updated=now,
                    marks=(*record.marks, *marks),
                    restarts=record.restarts + restarts,
                ),
                self._folder,
            )
