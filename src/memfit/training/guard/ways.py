"""How batches are computed, by their shapes: those that need more than the rest in a tighter recipe, only those."""

from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from memfit.data.shapes import BatchShape, covers, shape_of
from memfit.planning.plan import Ordinary
from memfit.steps.recipe import Recipe


@dataclass(eq=False)
class Way:
    """One way to compute batches.

    Attributes:
        recipe: The recipe at present.
        limits: Batches of at most one of these shapes are computed so; None for all that no other way takes.
        done: The largest shapes that were computed so.
        faster: The recipes that ran out, the last one last.
        tighter: What to go back to while a faster step is on trial.
        quiet: Steps since memory ran out.
    """

    recipe: Recipe
    limits: list[BatchShape] | None = None
    done: list[BatchShape] = field(default_factory=list)
    faster: list[Recipe] = field(default_factory=list)
    tighter: Recipe | None = None
    quiet: int = 0

    def takes(self, shape: BatchShape) -> bool:
        """Whether a batch of a shape is computed so."""
        return self.limits is None or any(covers(limit, shape) for limit in self.limits)

    def learn(self, shape: BatchShape) -> None:
        """Notes that a batch of a shape was computed."""
        if not any(covers(known, shape) for known in self.done):
            self.done = [known for known in self.done if not covers(shape, known)] + [shape]


class Ways:
    """The ways of one training, from the fastest to the tightest.

    Args:
        recipe: How batches are computed.
        ordinary: How those are that need less than the worst one; None where all are alike.
    """

    def __init__(self, recipe: Recipe, ordinary: Ordinary | None = None) -> None:
        self.all = [Way(recipe)]
        if ordinary is not None:
            self.all.insert(0, Way(ordinary.recipe, [ordinary.shape]))
        self._varies: dict[int, bool] = {}

    def choose(self, shape: BatchShape) -> Way:
        """Returns the way for batches of a shape."""
        return next(way for way in self.all if way.takes(shape))

    def measure(self, data: Any, spec: Any) -> BatchShape:
        """Returns the shape of a batch; nothing where all batches have the same, but for their samples.

        Args:
            spec: What the data promises of all batches; None where it promises nothing.
        """
        if id(spec) not in self._varies:
            self._varies = {id(spec): spec is None or any(map(_is_open, keras.tree.flatten(spec)))}
        return shape_of(data) if self._varies[id(spec)] else ()

    def set_apart(self, way: Way, shape: BatchShape) -> Way | None:
        """Makes a way of its own for batches larger than all that were computed before; None where this is none."""
        if not way.done or any(covers(known, shape) for known in way.done):
            return None
        apart = Way(way.recipe, way.limits)
        way.limits = list(way.done)
        self.all.insert(self.all.index(way) + 1, apart)
        return apart

    def uses(self, recipe: Recipe) -> bool:
        """Whether batches are computed by a recipe."""
        return any(way.recipe == recipe for way in self.all)


def _is_open(leaf: Any) -> bool:
    """Whether a promise of a dataset leaves dimensions open beside the samples."""
    if not isinstance(leaf, tf.TypeSpec) or not hasattr(leaf, "shape"):
        return False
    return leaf.shape.rank is None or None in tuple(leaf.shape)[1:]
