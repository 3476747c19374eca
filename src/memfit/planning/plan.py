"""The plan: the levers chosen for a budget, with predicted peak and time."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memfit.data.shapes import BatchShape
from memfit.errors import InvalidInput
from memfit.estimation.step_timeline import StepTimeline
from memfit.estimation.worst_batch import WorstBatch
from memfit.planning.fidelity import Fidelity
from memfit.showing import Shown
from memfit.sizes import Size, to_plain
from memfit.steps.recipe import Recipe
from memfit.tables import table


@dataclass(frozen=True)
class LeverRow:
    """What became of a lever in a plan.

    Attributes:
        name: What it is called.
        fidelity: What it does to the training.
        used: Whether the plan pulls it.
        setting: How far, such as "32 micro-batches of 8"; empty where it is not used.
        why: Why it is used or why not.
        saving: What it saves at its setting (predicted); None where it is not known.
        cost: Its time as a part of a stock step, 0.2 for 20% more (predicted); None where it is not known.
    """

    name: str
    fidelity: Fidelity
    used: bool
    why: str
    setting: str = ""
    saving: Size | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Ordinary:
    """How batches are computed that need less than the worst one.

    Attributes:
        shape: Batches of at most this shape are ordinary.
        recipe: How they are computed.
        share: How many of all batches they are, as a part of 1.
    """

    shape: BatchShape
    recipe: Recipe
    share: float

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return to_plain(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Ordinary":
        """Reads what `to_json` returned."""
        return cls(tuple(map(tuple, data["shape"])), Recipe.from_json(data["recipe"]), data["share"])


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """What to change so that a training fits, applied by `memfit.fit(..., plan=plan)`.

    Attributes:
        model: A fingerprint of the model the plan was made for.
        batch_size: The batch of one optimizer update.
        memory: The bytes the job may take on its device.
        fidelity: The farthest that any lever of the plan goes.
        recipe: How a step is computed.
        stock: The predicted peak without any lever.
        predicted: The predicted peak with the plan.
        margin: What the prediction keeps free below `memory` for its own error.
        time: The predicted time of a step, as a multiple of stock's.
        source: What the prediction stands on.
        is_bound: Whether the peaks are upper bounds, because the job clearly fits.
        layer_names: With segments, the model's layers in order: Keras may number those of a copy otherwise.
        levers: Every lever, used or not, with the reason.
        timeline: The predicted memory of one step with the plan; None where the step was not recorded.
        worst: The batch that the plan is made for, where the shapes of the data vary; otherwise None.
        ordinary: How smaller batches than that are computed; None where all are computed by `recipe`.
        ranks: How many processes train together; `batch_size` is then the largest share of one of them.
    """

    model: str
    batch_size: int
    memory: Size
    fidelity: Fidelity
    recipe: Recipe
    stock: Size
    predicted: Size
    margin: Size
    time: float
    source: str
    is_bound: bool = False
    layer_names: tuple[str, ...] = ()
    levers: tuple[LeverRow, ...] = ()
    timeline: StepTimeline | None = field(default=None, compare=False)
    worst: WorstBatch | None = None
    ordinary: Ordinary | None = None
    ranks: int = 1

    @property
    def batch(self) -> str:
        """The batch of one update, for a person."""
        return str(self.batch_size) if self.ranks == 1 else f"{self.batch_size} on each of {self.ranks} ranks"

    @property
    def changes_nothing(self) -> bool:
        """Whether the job fits as it is."""
        return self.recipe.is_stock and not self.recipe.immediate_update

    def __repr__(self) -> str:
        known = "at most" if self.is_bound else "predicted"
        free = f"; {self.margin} kept free" if self.margin else ""
        facts: list[list[object]] = [
            ["batch", self.batch],
            ["memory", self.memory],
            ["stock peak", f"{self.stock} ({known})"],
            ["planned peak", f"{self.predicted} ({known}{free})"],
            ["step time", f"{self.time:.2f}x stock's (predicted)"],
            [
                "fidelity",
                "as stock Keras: no lever is needed" if self.changes_nothing else str(self.fidelity),
            ],
            ["source", self.source],
            *self._describe_shapes(),
        ]
        rows = [
            [
                "✓" if lever.used else "·",
                lever.name,
                lever.fidelity,
                f"-{lever.saving}" if lever.saving else "",
                "" if lever.cost is None else f"+{lever.cost:.0%}",
                f"{lever.setting}: {lever.why}" if lever.setting else lever.why,
            ]
            for lever in sorted(self.levers, key=lambda lever: (not lever.used, lever.fidelity))
        ]
        if not rows:
            return table(facts)
        head = ["", "lever", "fidelity", "saves", "time", "why"]
        return table(facts) + "\n\n" + table(rows, head=head, right=[3, 4])

    def _describe_shapes(self) -> list[list[object]]:
        if self.worst is None:
            return []
        rows: list[list[object]] = [["worst batch", str(self.worst).removeprefix("worst batch: ")]]
        if self.ordinary is not None:
            shape = ", ".join(map(str, self.ordinary.shape))
            rows.append(
                [
                    "other batches",
                    f"{self.ordinary.share:.2%} of them, up to {shape}: in {self.ordinary.recipe}",
                ]
            )
        return rows

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as plain data that `from_json` reads, sizes in bytes."""
        return to_plain(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Plan":
        """Reads what `to_json` returned.

        Raises:
            InvalidInput: If something is missing or of another kind.
        """
        try:
            sizes = {name: Size(data[name]) for name in ("memory", "stock", "predicted", "margin")}
            values: dict[str, Any] = {
                **data,
                **sizes,
                "fidelity": Fidelity.read(data["fidelity"]),
                "recipe": Recipe.from_json(data["recipe"]),
                "layer_names": tuple(map(str, data.get("layer_names", ()))),
                "levers": tuple(map(_read_row, data["levers"])),
                "timeline": StepTimeline.from_json(data["timeline"]) if data.get("timeline") else None,
                "worst": WorstBatch.from_json(data["worst"]) if data.get("worst") else None,
                "ordinary": Ordinary.from_json(data["ordinary"]) if data.get("ordinary") else None,
            }
            return cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"A plan is read from what `Plan.to_json` returned ({error})") from error

    def save(self, file: str | Path) -> None:
        """Writes the plan to a JSON file."""
        Path(file).write_text(json.dumps(self.to_json(), indent=2) + "\n")

    @classmethod
    def load(cls, file: str | Path) -> "Plan":
        """Reads a plan from a JSON file.

        Raises:
            InvalidInput: If the file cannot be read or holds no plan.
        """
        try:
            return cls.from_json(json.loads(Path(file).read_text()))
        except (OSError, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"That file holds no plan ({error})", received=str(file)) from error


def _read_row(data: dict[str, Any]) -> LeverRow:
    lever = LeverRow(**data)
    saving = None if lever.saving is None else Size(lever.saving)
    return replace(lever, fidelity=Fidelity.read(data["fidelity"]), saving=saving)
