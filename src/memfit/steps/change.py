"""Changes to a model for the length of a training, as plain data that a recipe holds."""

import sys
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from memfit.errors import InvalidInput
from memfit.sizes import to_plain

# Where memfit's own changes are defined. They import Keras, which a process that only shows them does without.
_HOMES = ("memfit.steps.precision", "memfit.steps.lighter_state", "memfit.steps.sharded_state")


class Change(ABC):
    """One change to a model while it trains; a frozen dataclass whose `str` is a few words for people.

    A subclass names its `kind`, by which a saved plan finds it again.
    """

    kind: ClassVar[str]
    _kinds: ClassVar[dict[str, type["Change"]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):  # a class on its way from another process gets its attributes later
            Change._kinds[cls.kind] = cls

    @abstractmethod
    def applied(self, model: Any) -> AbstractContextManager[None]:
        """Makes the change for a while, and takes it back whatever happens."""

    def to_json(self) -> dict[str, Any]:
        """Returns plain data that `from_json` reads."""
        return {"kind": self.kind, **to_plain(self)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Change":
        """Reads what `to_json` returned; what is unknown here is kept as it was written, and cannot be applied."""
        settings = dict(data)
        kind = settings.pop("kind")
        if kind not in Change._kinds and "keras" in sys.modules:
            for module in _HOMES:
                import_module(module)
        if kind not in Change._kinds:
            return Unread(kind, tuple(settings.items()))
        return Change._kinds[kind](**settings)


@dataclass(frozen=True)
class Unread(Change):
    """A change in a process that only shows plans and records, without Keras or the lever that made it.

    Attributes:
        of: Its kind.
        settings: Its settings, as they were written.
    """

    of: str
    settings: tuple[tuple[str, Any], ...]

    def applied(self, model: Any) -> AbstractContextManager[None]:
        """Refuses.

        Raises:
            InvalidInput: Always.
        """
        raise InvalidInput(
            "The plan contains a change that is not known here",
            received=self.of,
            remedy="Import the lever that made it before you load the plan",
        )

    def to_json(self) -> dict[str, Any]:
        """Returns what was read."""
        return {"kind": self.of, **dict(self.settings)}

    def __str__(self) -> str:
        return ", ".join(str(value) for _, value in self.settings) or self.of
