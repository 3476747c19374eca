"""What a recording holds: the variables, and every birth and death of some small steps."""

from collections.abc import Mapping
from dataclasses import dataclass

from memfit.estimation.recording.trace import Event

# The peak is the largest of this many steps.
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
class Compiled:
    """What XLA said of a step that was not run.

    Attributes:
        batch: The batch size it was compiled for.
        events: The step's events there.
        doubt: How far off, as a part of the whole, the same way was at the batch that was run; 0 where XLA answered
            for the batch asked about.
        failure: Why it did not answer for that, or "".
    """

    batch: int
    events: tuple[Event, ...]
    doubt: float = 0.0
    failure: str = ""


@dataclass(frozen=True)
class Recording:
    """All that one isolated process saw.

    Attributes:
        phase: "train", "validate" or "predict".
        variables: What is there before the first step.
        folded: For each batch size whose step was traced for it, the constants that TensorFlow keeps; that of
            `steps` comes last.
        starts: Events of making the optimizer's state, before each first step.
        others: A step of each other batch, which only gives sizes.
        steps: Steps in a row at one batch, the one asked about if the time allowed, whose orders are replayed; as
            many as `starts` are first steps.
        compiled: A step as XLA would have it at the batch size asked about, which was compiled and not run.
        layers: Names of the model's layers, nested ones included.
        shapes: Shapes of the trainable variables, as text: a gradient has one of them.
        inputs: What every op of the step waits for, by name; empty where XLA compiles the step.
        setup: What building and tracing the step allocated and freed, in order: after the variables whose `event`
            is None were made, and before the first step. Its addresses are its own: steps that are not part of
            `steps` ran in between, so that what is left of it may be given back under another one.
        seconds: The CPU time of a step of each recorded batch size, the smallest first.
    """

    phase: str
    variables: tuple[Variable, ...]
    folded: tuple[Step, ...]
    starts: tuple[tuple[Event, ...], ...]
    others: tuple[Step, ...]
    steps: tuple[Step, ...]
    compiled: tuple[Compiled, ...]
    layers: tuple[str, ...]
    shapes: frozenset[str]
    inputs: Mapping[str, tuple[str, ...]]
    setup: tuple[Event, ...] = ()
    seconds: tuple[tuple[int, float], ...] = ()

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes that were recorded, the smallest first."""
        return tuple(sorted((*(step.batch for step in self.others), self.steps[0].batch)))
