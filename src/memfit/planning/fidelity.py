"""How far a change may go from the training the user wrote."""

from enum import IntEnum

from memfit.errors import InvalidInput

# What is said of every change that is not exact, in any sentence: reports look for it.
NOT_EXACT = "not exact"


class Fidelity(IntEnum):
    """The kinds of change, most faithful first.

    EXACT leaves the mathematics the same, NEAR takes batch statistics over fewer samples, PRECISION uses other
    number formats or another optimizer, MODEL is another network.
    """

    EXACT = 0
    NEAR = 1
    PRECISION = 2
    MODEL = 3

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def read(cls, allow: "str | Fidelity") -> "Fidelity":
        """Reads the value of an `allow` argument.

        Raises:
            InvalidInput: If it names no fidelity.
        """
        if isinstance(allow, Fidelity):
            return allow
        if isinstance(allow, str) and allow.upper() in cls.__members__:
            return cls[allow.upper()]
        names = ", ".join(f'"{fidelity}"' for fidelity in cls)
        raise InvalidInput(f"`allow` is one of {names}", received=allow)
