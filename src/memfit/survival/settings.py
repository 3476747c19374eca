"""What a run is asked to do, and what the supervisor tells the process that it starts."""

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Seconds between two checkpoints: what a kill may cost, however cheap checkpoints are.
_CHECKPOINT_SECONDS = 5.0

OUTCOME = "outcome"  # the file in which a process says that memory ended it
# What has a flag of `memfit run` of its own name.
FLAGS = ("memory", "allow", "ranks", "shard_optimizer", "elastic", "strict", "watch", "quiet")
CUSTOM_LOOP = -1  # stands for a call of fit() where a script trains in a custom loop


def record_id(run: str, call: int) -> str:
    """Returns the id of the record of a call of fit(), the same in every process of a run."""
    return hashlib.sha256(f"{run} {call}".encode()).hexdigest()[:6]


def name_of_rank(name: str, rank: int) -> str:
    """Returns the name of a file that every rank has of its own."""
    return f"{name}-{rank}" if rank else name


@dataclass(frozen=True)
class RunSettings:
    """What `memfit run` is asked to do with a script.

    Attributes:
        memory: What each `fit` in it may take; None for what is free.
        allow: The most that a plan may change.
        strict: Whether a bug in memfit ends the script, instead of a warning and a training as in stock Keras.
        checkpoint_seconds: Seconds between two checkpoints at least.
        seed: What random numbers that the script does not seed are drawn from; None for a new one.
        quiet: Whether to say only what went wrong.
        watch: Whether to look for memory that grows steadily.
        ranks: How many processes on this machine train together.
        elastic: Whether to go on with fewer of them where one cannot be started again.
        shard_optimizer: Whether each of them may keep a part of the optimizer's state.
    """

    memory: int | str | None = None
    allow: str = "near"
    strict: bool = False
    checkpoint_seconds: float = _CHECKPOINT_SECONDS
    seed: int | None = None
    quiet: bool = False
    watch: bool = False
    ranks: int = 1
    elastic: bool = False
    shard_optimizer: bool = False

    def command(self, script: Path, arguments: Sequence[str]) -> str:
        """Returns the command that goes on with a script, as one types it."""
        flags: list[str] = []
        for name in FLAGS:
            value = getattr(self, name)
            if value != getattr(RunSettings, name):
                flags += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return shlex.join(["memfit", "run", "--resume", *flags, str(script), *arguments])


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(RunSettings):
    """What one process of a run is told.

    Attributes:
        seed: The seed of the run.
        directory: Where checkpoints, plans and the position are.
        records: The folder for the records of its trainings; empty for none.
        run: What the ids of these records are made of: the same for all processes of a run.
        script: The script's file name, for the records.
        tighten: Whether memory ended the process before: then another plan is made, for less.
        verbose: Whether to log what is only informative.
        rank: The number of this process in its job; rank 0 writes checkpoints.
    """

    seed: int
    directory: str
    records: str = ""
    run: str = ""
    script: str = ""
    tighten: bool = False
    verbose: bool = False
    rank: int = 0

    def to_json(self) -> str:
        """Returns the settings as text for an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ProcessSettings":
        """Reads what `to_json` returned."""
        return cls(**json.loads(text))
