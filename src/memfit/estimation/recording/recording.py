"""What a recording holds: the variables, and every birth and death of some small steps."""

from dataclasses import dataclass

from memfit.estimation.recording.trace import Event
from memfit.estimation.recording.xla import Compiled

# The peak is the largest of so many steps.
STEPS = 5
# Births and deaths of recorded steps that are kept, to choose from those that are replayed at a batch size.
KEPT_EVENTS = 120_000
# What TensorFlow names a constant it has computed ahead.
FOLDED = "__cf__"


@dataclass(frozen=True)
class Variable:
    """A variable that is there before the first step.

    Attributes:
        name: Its owner's name.
        kind: "weights", "optimizer state" or "gradients".
        bytes: Its size.
        random: Whether its first value is drawn at random.
        event: Position in `Recording.setup` of the event that allocated it; None where it was there before.
    """

    name: str
    kind: str
    bytes: int
    random: bool
    event: int | None = None


@dataclass(frozen=True)
class Step:
    """A recorded step: its batch size and its events in order."""

    batch: int
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Recording:
    """All that one isolated process saw.

    Attributes:
        phase: "train", "validate" or "predict".
        variables: What is there before the first step.
        folded: For each batch size whose step was traced for it, the constants that TensorFlow keeps.
        starts: Events of making the optimizer's state, before each first step.
        smaller: A step of each smaller batch, which only gives sizes.
        steps: Steps in a row at the largest batch, whose orders are replayed; as many as `starts` are first steps.
        compiled: A step as XLA would have it at the batch size asked about, which was compiled and not run.
        layers: Names of the model's layers, nested ones included.
        shapes: Shapes of the trainable variables, as text: a gradient has one of them.
        seconds: Time per op name in a step of the largest batch.
        inputs: What every op of the step waits for, by name; empty where XLA compiles the step.
        guarded: Whether the step ran as the guard runs planned ones, who moves small variables before each.
        nursery: Whether the guard makes gaps for what is small.
        setup: What building and tracing the step allocated and freed, in order: after the variables were made, and
            before the first step.
    """

    phase: str
    variables: tuple[Variable, ...]
    folded: tuple[Step, ...]
    starts: tuple[tuple[Event, ...], ...]
    smaller: tuple[Step, ...]
    steps: tuple[Step, ...]
    compiled: tuple[Compiled, ...]
    layers: tuple[str, ...]
    shapes: frozenset[str]
    seconds: dict[str, float]
    inputs: dict[str, tuple[str, ...]]
    guarded: bool = False
    nursery: bool = False
    setup: tuple[Event, ...] = ()

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes that were recorded, the smallest first."""
        return (*(step.batch for step in self.smaller), self.steps[0].batch)
