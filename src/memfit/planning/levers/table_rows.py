"""Rows only: what an optimizer would not keep that updates only the rows of an embedding that a batch has."""

from typing import Any

import keras

from memfit.compat.keras_layers import all_layers
from memfit.errors import CannotTell
from memfit.estimation.recording.kept import size_of
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Lever
from memfit.planning.optimizer_sizes import kept_by
from memfit.sizes import Size
from memfit.steps.slots import innermost

_SMALLEST = 2**20  # bytes of tables below which it is not worth a thought


class TableRows(Lever):
    """Says what updating only rows would save.

    A batch's gradient of a table is sparse. Of Keras's optimizers only SGD without momentum and weight decay writes
    just these rows, and keeps nothing; the others have moments of the table's size, and compute all of its rows in
    every update (measured: 1.5 to 5 tensors as large as the table).
    """

    name = "rows of embeddings"
    always = Fidelity.PRECISION  # another optimizer for the tables
    of_optimizer = True

    def explain(self, job: Job) -> str:
        """Says what is kept for the tables, and which optimizer would keep none of it."""
        name = type(innermost(job.model.optimizer)).__name__
        return (
            f"up to you: {name} keeps state for all rows of {len(_tables(job.model))} table(s) and updates "
            "all of them; plain SGD for the tables keeps none and updates a batch's rows, and converges differently"
        )

    def why_not(self, job: Job) -> str | None:
        """There have to be large tables, and an optimizer that keeps something for them."""
        optimizer, tables = innermost(job.model.optimizer), _tables(job.model)
        if sum(map(size_of, tables)) < _SMALLEST:
            return "there is no large embedding that is trained"
        try:
            if kept_by(optimizer, tables) == 0:
                return f"{type(optimizer).__name__} keeps nothing for them"
        except CannotTell as error:
            return str(error)
        return None

    def advise_saving(self, job: Job, batch_size: int) -> Size | None:
        """What the optimizer keeps for the tables."""
        return kept_by(innermost(job.model.optimizer), _tables(job.model))


def _tables(model: Any) -> list[Any]:
    """The trained tables of a model's embeddings, each once."""
    layers = [
        layer for layer in all_layers(model) if isinstance(layer, keras.layers.Embedding) and layer.built
    ]
    return list({id(table): table for layer in layers for table in layer.trainable_variables}.values())
