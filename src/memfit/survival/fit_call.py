"""The call of `fit` that a script was about to make: the model, and its data as an estimate takes it."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras

from memfit.compat import keras_data
from memfit.compat.tf_datasets import dataset_batch_size
from memfit.data.peeking import FirstBatch, is_generator
from memfit.data.shapes import Shapes
from memfit.errors import CannotTell
from memfit.estimation.worst_batch import look_where_needed
from memfit.training.batches import KERAS_DEFAULT, batch_size_of, look_ahead
from memfit.training.plan_choice import example_of, validation_batch_of


@dataclass(frozen=True)
class FitCall:
    """The first fit() of a script: the model, and the arguments by their names in Keras."""

    model: Any
    arguments: dict[str, Any]

    @property
    def data(self) -> Any:
        """The training data in the form `estimate(data=...)` takes: a dataset as it is, arrays as a tuple."""
        shapes, first = self._seen
        return example_of(self.arguments, first) if shapes is None else shapes

    @property
    def batch_size(self) -> int:
        """Samples in a step: what fit() was given, what the data says, or Keras's default."""
        given = self.arguments.get("batch_size")
        if given is not None:
            return int(given)
        shapes, first = self._seen
        if shapes is not None:
            return max(shape[0][0] for shape in shapes.seen)
        with suppress(CannotTell):
            return batch_size_of(self.arguments.get("x"), None, first)
        return KERAS_DEFAULT

    def validation_batch_size(self, batch_size: int) -> int | None:
        """Samples in a validation batch where a step has `batch_size`; None where nothing is validated."""
        return validation_batch_of(self.arguments, batch_size)

    @cached_property
    def _seen(self) -> tuple[Shapes | None, FirstBatch | None]:
        """The shapes of all batches, or a first one, of data that does not tell them; nobody reads on."""
        x, first = look_ahead(self.arguments.get("x"))
        if not is_generator(x):
            with suppress(CannotTell):
                shapes = look_where_needed(self.model, x)
                if shapes is not None:
                    return shapes, None
        if keras_data.is_dataset(x) and (dataset_batch_size(x) is None or not _tells_shapes(x.element_spec)):
            first = FirstBatch(next(iter(x)))
        return None, first


def _tells_shapes(element_spec: Any) -> bool:
    leaves = [leaf for leaf in keras.tree.flatten(element_spec) if hasattr(leaf, "shape")]
    return all(leaf.shape.rank and None not in tuple(leaf.shape)[1:] for leaf in leaves)
