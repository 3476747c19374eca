"""What a variant is: one way to make another network of a model, when it applies, and what it says of itself."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from memfit.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Made:
    """A variant of a model.

    Attributes:
        model: The new model, compiled as the original was.
        notes: What a person should know of it, a sentence each.
        energy: The share of the changed weights' sum of squares that is kept, or None where no weight changed.
        trains: Whether it can be trained.
    """

    model: Any
    notes: tuple[str, ...] = ()
    energy: float | None = None
    trains: bool = True


class Variant(ABC):
    """One way to make another network for the same job.

    Attributes:
        name: What people call it.
        meaning: What its amount is, as in "the share of channels that are kept".
        default: The amount that is taken where none is given.
        least: The smallest amount, and `most` the largest; `most` of None for no limit.
        whole: Whether the amount is a whole number.
        resizes: Whether it takes inputs of another size.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    default: ClassVar[float]
    least: ClassVar[float]
    most: ClassVar[float | None]
    whole: ClassVar[bool] = False
    resizes: ClassVar[bool] = False

    @abstractmethod
    def why_not(self, model: Any) -> str | None:
        """Says why the variant cannot be made of a model, as a half-sentence; None where it may be tried."""

    @abstractmethod
    def make(self, model: Any, amount: float) -> Made:
        """Makes the variant; the model is only read.

        Raises:
            CannotSlim: If it turns out that it cannot be made; the message is the reason.
        """

    def read_amount(self, amount: float | None) -> float:
        """Returns the amount, the default for None.

        Raises:
            InvalidInput: If it is out of range.
        """
        if amount is None:
            return self.default
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        in_range = number and self.least <= amount and (self.most is None or amount <= self.most)
        if not in_range or (self.whole and amount != int(amount)):
            limits = f"at least {self.least:g}" if self.most is None else f"{self.least:g} to {self.most:g}"
            kind = "a whole number, " if self.whole else ""
            raise InvalidInput(
                f"The amount of {self.name!r} is {self.meaning}: {kind}{limits}",
                received=amount,
                remedy=f"{self.default:g} is the default",
            )
        return amount

    def label(self, amount: float) -> str:
        """Names the variant with its amount."""
        return f"{self.name} {amount:g}"
