"""The recipe: how one training step is computed, as plain data."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from memfit.errors import InvalidInput, check_count
from memfit.sizes import to_plain
from memfit.steps.change import Change
from memfit.steps.segments import Segments


def check_size(name: str, size: Any) -> None:
    """Refuses an invalid number of samples; None is valid."""
    if size is not None:
        check_count(f"`{name}` is a whole number of samples, at least 1", size)


@dataclass(frozen=True)
class Recipe:
    """How a step is computed; `Recipe()` is stock Keras's own step.

    Attributes:
        micro_batch: Samples in a micro-batch (gradient accumulation); None for the whole batch at once.
        segments: What is kept for the backward pass (activation checkpointing); None for everything.
        inputs_on_host: Whether arrays stay on the host, and a step takes only the samples that it computes.
        changes: What else is done to the model while it trains, such as another precision.
        validation_batch: Samples that a validation step computes at once; None for whole batches.
        immediate_update: Whether a weight is updated as soon as its gradient is there, by Keras's own step, and not
            when all are: fewer gradients are kept, but a step that runs out of memory cannot be undone.
    """

    micro_batch: int | None = None
    segments: Segments | None = None
    inputs_on_host: bool = False
    changes: tuple[Change, ...] = ()
    validation_batch: int | None = None
    immediate_update: bool = False

    def __post_init__(self) -> None:
        for name in ("micro_batch", "validation_batch"):
            check_size(name, getattr(self, name))
        if self.immediate_update and (self.micro_batch is not None or self.segments is not None):
            raise InvalidInput("Immediate updates work only with Keras's own train_step", received=str(self))

    @property
    def is_stock(self) -> bool:
        """Whether the training step is stock Keras's own."""
        return replace(self, validation_batch=None, immediate_update=False) == Recipe()

    @contextmanager
    def applied(self, model: Any) -> Iterator[None]:
        """Makes the recipe's changes to a model for the length of a training, and takes them back."""
        with ExitStack() as stack:
            for change in self.changes:
                stack.enter_context(change.applied(model))
            yield

    def __str__(self) -> str:
        size = "whole batches" if self.micro_batch is None else f"micro-batches of {self.micro_batch}"
        segments = "" if self.segments is None else f"rematerialised in {self.segments.count} segment(s)"
        update = "immediate updates" if self.immediate_update else ""
        return ", ".join(filter(None, (size, segments, update, *map(str, self.changes))))

    def to_json(self) -> dict[str, Any]:
        """Returns plain data that `from_json` reads."""
        return to_plain(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Recipe":
        """Reads what `to_json` returned.

        Raises:
            InvalidInput: If something is missing or of another kind.
        """
        try:
            segments = data["segments"]
            return cls(
                data["micro_batch"],
                None if segments is None else Segments.from_json(segments),
                bool(data["inputs_on_host"]),
                tuple(Change.from_json(change) for change in data["changes"]),
                data["validation_batch"],
                bool(data["immediate_update"]),
            )
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"A recipe is read from what `Recipe.to_json` returned ({error})") from error
