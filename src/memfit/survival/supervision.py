"""What a process that `memfit run` started knows: where its checkpoints are, and how far an earlier one came."""

from collections.abc import Callable
from pathlib import Path

from memfit.survival.checkpoint_files import Checkpoint, TornCheckpoint, read
from memfit.survival.checkpoints import CheckpointWriter, read_latest
from memfit.survival.kept_states import keep
from memfit.survival.positions import POSITION, PositionFile
from memfit.survival.settings import ProcessSettings, name_of_rank


class Stopped(BaseException):
    """Ends the script after its last checkpoint; no `except Exception` of the script stops it."""


class Supervision:
    """The state of a supervised process, and what earlier processes of the run left.

    Attributes:
        settings: What the supervisor asks for.
        directory: Where checkpoints, plans and the position are.
        writer: Writes checkpoints.
        writes: Whether this process does: of several ranks only rank 0, as all have the same state.
        position: Where the batch is noted that is being trained.
        reached: The last checkpoint of an earlier process; None once it is put back, or where there is none.
        snapshot: Returns the state of the fit() that is running, as of its last whole batch; None where it cannot
            be gone on from there, or none is running.
        training: Whether a fit() is running.
        stopping: Whether the process was asked to end.
    """

    def __init__(self, settings: ProcessSettings) -> None:
        """Reads the last checkpoint, and begins to note the position."""
        self.settings = settings
        self.directory = Path(settings.directory)
        self.writer = CheckpointWriter(self.directory, settings.checkpoint_seconds)
        self.writes = settings.rank == 0
        self.position = PositionFile(self.directory / name_of_rank(POSITION, settings.rank))
        self.reached = read_latest(self.directory)
        self.snapshot: Callable[[], Checkpoint | None] | None = None
        self.training = self.stopping = False

    def has_finished(self, call: int) -> bool:
        """Whether an earlier process has finished a call of fit()."""
        return (self.directory / finished_name(call)).exists()

    def finished(self, call: int) -> Checkpoint | None:
        """The state in which an earlier process left a call of fit(); None if it has to be trained."""
        path = self.directory / finished_name(call)
        try:
            return read(path) if path.exists() else None
        except TornCheckpoint:
            path.unlink(missing_ok=True)
            return None

    def unfinished(self, call: int) -> Checkpoint | None:
        """The last checkpoint, if it lies in this call of fit()."""
        checkpoint = self.reached
        return checkpoint if checkpoint is not None and checkpoint.facts["call"] == call else None

    def keep_state(self) -> None:
        """Keeps the state of this rank, because another one is lost."""
        self.writer.wait()
        checkpoint = None if self.snapshot is None else self.snapshot()
        if checkpoint is not None:
            keep(checkpoint, self.directory, self.settings.rank)

    def ask_to_stop(self) -> bool:
        """Lets a fit() that is running end after the next batch, with a checkpoint; False where none is running."""
        self.stopping = self.training
        return self.training


def finished_name(call: int) -> str:
    """The file of the state at the end of a call of fit()."""
    return f"fit-{call:03d}.npz"
