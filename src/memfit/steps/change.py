"""Changes to a model for the length of a training, as plain data that a recipe holds."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, ClassVar

from memfit.errors import InvalidInput


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
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Change":
        """Reads what `to_json` returned.

        Raises:
            InvalidInput: If its kind is not known here.
        """
        settings = dict(data)
        kind = settings.pop("kind")
        if kind not in Change._kinds:
            raise InvalidInput(
                f"A recipe's changes are of the kinds {', '.join(sorted(Change._kinds))}", received=kind
            )
        return Change._kinds[kind](**settings)
