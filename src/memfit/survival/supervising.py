"""The supervisor: runs a script in a process of its own, and starts it again where it was when it dies."""

import contextlib
import os
import signal
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.scaling.cluster import RANK, Cluster, find_cluster
from memfit.scaling.launching import Ending, await_ranks, rank_environments
from memfit.sizes import check_memory
from memfit.survival.checkpoints import find_position
from memfit.survival.child_process import SETTINGS
from memfit.survival.crashes import Crash, count_kernel_kills, explain_crash, judge_exit
from memfit.survival.kept_states import forget_kept, is_writing, take_over_newest
from memfit.survival.positions import POSITION, Position, read_position, say_from, say_where
from memfit.survival.run_directory import (
    RunIdentity,
    describe_unfinished,
    directory_of,
    has_checkpoint,
    locked,
    open_directory,
    remove_directory,
)
from memfit.survival.run_records import RunRecords
from memfit.survival.script_process import ScriptProcess
from memfit.survival.scripts import check_script
from memfit.survival.settings import OUTCOME, ProcessSettings, RunSettings, name_of_rank
from memfit.training.records.files import records_folder
from memfit.training.records.record import RunRecord

# A death further on is progress; this many without any, and the cause is where it stands.
_ATTEMPTS = 3
_REQUESTS = (signal.SIGINT, signal.SIGTERM)


def supervise(
    script: str | Path,
    arguments: Sequence[str] = (),
    settings: RunSettings = RunSettings(),  # noqa: B008 (frozen)
    *,
    resume: bool = False,
    kept: Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
    report: Callable[[Sequence[tuple[Path, RunRecord]]], None] = lambda records: None,
) -> int:
    """Runs a training script to its end, however often its process dies.

    Args:
        script: The script, which need not know memfit.
        arguments: Its arguments.
        settings: What to do with it.
        resume: Whether to go on where an earlier run was stopped.
        kept: The settings that are then those of the earlier run.
        tell: Takes what there is to say, a line at a time.
        report: Takes the records of what was trained, with their files, at the end.

    Returns:
        The script's exit code; 128 and the signal's number where a signal ended it.

    Raises:
        InvalidInput: If there is no such script, or its checkpoint belongs to another one.
    """
    script = Path(script)
    check_script(script)
    check_memory(settings.memory)
    Fidelity.read(settings.allow)
    cluster = find_cluster()
    directory = directory_of(script, arguments, Path.cwd(), cluster)
    if cluster is None:
        os.environ.pop(RANK, None)  # of a job whose script has started this one: it is no rank of that
    else:
        _check_ranks(settings.ranks, cluster)
        settings = replace(settings, seed=seed_of(cluster) if settings.seed is None else settings.seed)
    try:
        with locked(directory):
            if not resume and has_checkpoint(directory):
                tell(describe_unfinished(directory, script, arguments))
            identity = open_directory(directory, script, arguments, settings, resume=resume, kept=kept)
            if resume and not has_checkpoint(directory):
                tell(
                    "There is no checkpoint of this script with these arguments: it starts from the beginning."
                )
            run = _Run(script, list(arguments), directory, identity, tell, report, cluster)
            return run.run_to_end()
    finally:
        with contextlib.suppress(OSError):  # not empty: other runs have theirs there
            directory.parent.rmdir()


class _Run:
    """One script, its processes one after the other or side by side, and what was seen of them."""

    def __init__(
        self,
        script: Path,
        arguments: list[str],
        directory: Path,
        identity: RunIdentity,
        tell: Callable[[str], None],
        report: Callable[[Sequence[tuple[Path, RunRecord]]], None],
        cluster: Cluster | None,
    ) -> None:
        self._script, self._arguments, self._directory = script, arguments, directory
        self._identity, self._tell, self._report = identity, tell, report
        # The rank of the first process here: others are counted on from it.
        self._first_rank = 0 if cluster is None else cluster.rank
        self._in_cluster = cluster is not None
        # Without a folder to keep them, records are there for the report at the end, and go with the directory.
        self._record_folder = (records_folder() or directory / "records").resolve()
        self._run = f"{identity.begun} {directory.resolve()}"
        self._records = RunRecords(self._record_folder, self._run)
        self._restarts = 0
        self._processes: list[ScriptProcess] = []
        self._asked: int | None = None
        self._settings = identity.settings

    def run_to_end(self) -> int:
        """Runs the script to its end, and reports."""
        take_over_newest(self._directory)  # what ranks of a run that is resumed have kept
        if has_checkpoint(self._directory) and not self._settings.quiet:
            self._tell(f"resumed: continues {say_from(find_position(self._directory))}")
        try:
            code = self._run_to_end()
        finally:
            forget_kept(self._directory)
        records = self._records.read()
        self._report(records)
        if code == 0:
            untrained = self._first_rank == 0 and not records and not has_checkpoint(self._directory)
            if untrained and not self._settings.quiet:
                self._tell("Nothing was trained under memfit: the script never called fit().")
            remove_directory(self._directory)
        return code

    def _run_to_end(self) -> int:
        """Starts the script until it ends by itself, is asked to end, or dies without getting further."""
        furthest: Position | None = None
        attempts, tighten = 0, None
        with self._signals():
            while True:
                kills = count_kernel_kills()
                ending = self._run_once(self._settings, tighten=tighten)
                if ending.code == 0:
                    return 0
                if self._asked is not None:
                    return self._stop(128 + self._asked)
                crash = self._judge(ending, killed_for_memory=count_kernel_kills() > kills)
                if crash is None:
                    code = ending.code or 0
                    ended = 128 - code if code < 0 else code
                    return self._stop(ended) if ended - 128 in _REQUESTS else ended
                position = read_position(self._directory)
                further = position is not None and (furthest is None or position > furthest)
                attempts = 1 if further else attempts + 1
                furthest = max(filter(None, (position, furthest)), default=None)
                elastic = self._settings.elastic and self._settings.ranks > 1
                leave_out = attempts >= _ATTEMPTS and elastic
                hopeless = crash.memory and self._records.has_custom_loop()
                if hopeless or (attempts >= _ATTEMPTS and not leave_out):
                    return self._give_up(crash, position, self._processes[ending.rank].log)
                tighten = ending.rank if crash.memory else None
                self._start_again(crash, position)
                if leave_out:
                    self._settings, attempts = self._go_on_with_fewer(self._settings), 0

    def _run_once(self, settings: RunSettings, *, tighten: int | None) -> Ending:
        """Runs the script once, in one process or in one for each rank, and says how that ended."""
        for name in (OUTCOME, POSITION):
            for path in self._directory.glob(f"{name}*"):
                path.unlink(missing_ok=True)
        self._processes = []
        try:
            for number, environment in enumerate(rank_environments(settings.ranks, settings.memory)):
                told = self._tell_process(settings, number, tighten=tighten == number)
                # One order of sets and dicts of text in all processes of the run.
                hashes = os.environ.get("PYTHONHASHSEED", str(self._identity.seed))
                variables = {**environment, SETTINGS: told.to_json(), "PYTHONHASHSEED": hashes}
                self._processes.append(ScriptProcess(self._script, self._arguments, variables, number))
            ending = await_ranks(self._processes, lambda rank: is_writing(self._directory, rank))
        finally:
            for process in self._processes:
                if process.poll() is None:
                    process.kill()
        for process in self._processes:
            process.end_copying()
        take_over_newest(self._directory)
        return ending

    def _tell_process(self, settings: RunSettings, number: int, *, tighten: bool) -> ProcessSettings:
        rank = self._first_rank + number
        return ProcessSettings(
            **{**asdict(settings), "seed": self._identity.seed, "quiet": settings.quiet or rank > 0},
            directory=str(self._directory.resolve()),
            records="" if number else str(self._record_folder),
            run=self._run,
            script=self._script.name,
            tighten=tighten,
            verbose=rank == 0 and sys.stderr.isatty(),
            rank=rank,
        )

    def _judge(self, ending: Ending, *, killed_for_memory: bool) -> Crash | None:
        """Says why the rank that ended the others died; None where its script ended as it wanted to."""
        process = self._processes[ending.rank]
        said = (self._directory / name_of_rank(OUTCOME, self._first_rank + ending.rank)).exists()
        in_job = self._in_cluster or len(self._processes) > 1
        crash = judge_exit(
            ending.code, process.log, said_memory=said, killed_for_memory=killed_for_memory, in_job=in_job
        )
        process.show_log()
        if crash is None or not in_job:
            return crash
        return replace(crash, cause=f"rank {self._first_rank + ending.rank}: {crash.cause}")

    def _go_on_with_fewer(self, settings: RunSettings) -> RunSettings:
        """Leaves a rank out that could not be started again."""
        fewer = settings.ranks - 1
        self._tell(
            f"continues with {fewer} rank{'s' * (fewer > 1)} (--elastic): the batches stay the same, each rank "
            "computes more of them; sums over ranks may differ in their last bits"
        )
        return replace(settings, ranks=fewer)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def pass_on(number: int, frame: Any) -> None:
            first, self._asked = self._asked is None, number
            running = [process for process in self._processes if process.poll() is None]
            if first and running:
                self._tell(
                    "Stopping after the current batch, with a checkpoint. A second signal stops at once."
                )
            for process in running:
                if first:
                    process.send_signal(number)
                else:
                    process.kill()

        before = {number: signal.signal(number, pass_on) for number in _REQUESTS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, code: int) -> int:
        if has_checkpoint(self._directory):
            self._tell(f"To continue: {self._command()}")
        else:
            self._tell("There is no checkpoint yet.")
        return code

    def _command(self) -> str:
        return self._settings.command(self._script, self._arguments)

    def _start_again(self, crash: Crash, position: Position | None) -> None:
        """Says what ended the process, and where the next one goes on."""
        self._restarts += 1
        plan = " with a plan for less memory" if crash.memory else ""
        goes_on = f"{plan}: continues {say_from(find_position(self._directory))}"
        self._tell_death(crash, f"{crash.cause} {say_where(position)}", position, f"Restarted{goes_on}.")
        self._tell(f"restart {self._restarts}{goes_on}")

    def _tell_death(self, crash: Crash, death: str, position: Position | None, goes_on: str | None) -> None:
        hint = f" ({crash.hint})" if crash.hint else ""
        self._tell(death)
        self._tell(f"likely cause: {crash.likely}{hint}")
        self._records.note_death(f"{death}. Likely cause: {crash.likely}.", position, goes_on)

    def _give_up(self, crash: Crash, position: Position | None, log: str) -> int:
        loop = crash.memory and self._records.has_custom_loop()
        how_often = "in a loop that memfit cannot change" if loop else f"{_ATTEMPTS} times without progress"
        where = "" if loop else f"{say_where(position)}, "
        self._tell_death(crash, f"{crash.cause} {where}{how_often}", position, None)
        for line in repr(explain_crash(crash, log)).splitlines():
            self._tell(line)
        if has_checkpoint(self._directory):
            self._tell(f"Once that is fixed: {self._command()}")
        return crash.exit_code


def _check_ranks(ranks: int, cluster: Cluster) -> None:
    if ranks > 1:
        raise InvalidInput(
            "`--ranks` starts ranks on this machine, but this process is a rank of a job already",
            received=f"--ranks {ranks}, and rank {cluster.rank} of {cluster.count} from {cluster.source}",
            remedy="Leave --ranks out to train as that rank, or remove TF_CONFIG",
        )


def seed_of(cluster: Cluster) -> int:
    """Returns a seed that all ranks of a job know without having met."""
    return zlib.crc32(" ".join(cluster.addresses).encode()) % 2**31
