"""`Segments`: which forward tensors a training step keeps, and where its recomputation is divided."""

from dataclasses import dataclass
from typing import Any

from memfit.errors import InvalidInput
from memfit.sizes import Size, to_plain
from memfit.tables import table


@dataclass(frozen=True, repr=False)
class Segments:
    """A choice of what to keep for the backward pass; everything else is computed again there.

    Attributes:
        batch_size: The batch the figures are for. The choice itself holds for any batch.
        starts: The forward ops at which the second and later segments start, by their names in the model.
        kept: The forward tensors that stay in memory, by their names in the model.
        stock_bytes: Predicted activation memory of the step without rematerialisation.
        activation_bytes: Predicted activation memory with it.
        recomputed: Predicted extra time, as a fraction of the step's time without it.
        split_convolutions: Whether the largest convolutions take the batch in parts, which XLA alone does.
    """

    batch_size: int
    starts: tuple[str, ...]
    kept: tuple[str, ...]
    stock_bytes: Size
    activation_bytes: Size
    recomputed: float
    split_convolutions: bool = False

    @property
    def count(self) -> int:
        """How many segments there are."""
        return len(self.starts) + 1

    def __repr__(self) -> str:
        rows = [
            ("activations at batch", self.batch_size),
            ("kept as stock Keras does", self.stock_bytes),
            ("rematerialised", f"{self.activation_bytes} (1/{self.stock_bytes / self.activation_bytes:.1f})"),
            ("segments", self.count),
            ("extra time a step", f"{self.recomputed:.0%}"),
        ]
        return table(rows) + "\n(predicted)"

    def to_json(self) -> dict[str, Any]:
        """Returns plain data that `from_json` reads."""
        return to_plain(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Segments":
        """Reads what `to_json` returned.

        Raises:
            InvalidInput: If something is missing or of another kind.
        """
        try:
            return cls(
                batch_size=int(data["batch_size"]),
                starts=tuple(map(str, data["starts"])),
                kept=tuple(map(str, data["kept"])),
                stock_bytes=Size(data["stock_bytes"]),
                activation_bytes=Size(data["activation_bytes"]),
                recomputed=float(data["recomputed"]),
                split_convolutions=bool(data["split_convolutions"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"Segments are read from what `Segments.to_json` returned ({error})", received=data
            ) from error
