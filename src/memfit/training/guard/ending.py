"""What stock Keras does once more when data of unknown length ends: all of a step that needs no batch.

Keras reads the batch inside of its compiled step. Behind the last batch that fails, and TensorFlow still runs all
ops of the step that do not wait for it: seeds and the optimizer's iterations go on, weight decay is applied again.
Which ops these are depends on layers, optimizer and batch sizes that are fixed. So nothing is imitated here:
Keras's own step is run once more on the data that has ended.
"""

from functools import partial
from typing import Any

import keras
import tensorflow as tf

from memfit.steps.installing import replaced
from memfit.training.guard.events import Journal, attempt
from memfit.training.peers import Peers

_PHASES = {"train_function": "training", "test_function": "validation"}


class EndOfData:
    """Runs what Keras's own function runs of a step whose batch cannot be read.

    Args:
        name: Of Keras's function, "train_function" or "test_function".
        kept: Where a model's steps are kept: the function is traced at the first end, and not again.
        peers: The other processes that train the model: their data ends, too.
    """

    def __init__(
        self, model: keras.Model, name: str, journal: Journal, kept: dict[Any, Any], peers: Peers
    ) -> None:
        self._model, self._name, self._journal, self._kept = model, name, journal, kept
        self._peers = peers

    def __call__(self, iterator: Any) -> None:
        """Does it at the end of an iterator.

        Nothing runs where Keras reads before its step: eagerly, with XLA, with several steps per execution.
        """
        self._peers.end_pass()
        model = self._model
        with_xla = model.jit_compile or self._peers.xla_is_off
        reads_first = model.run_eagerly or with_xla or model.steps_per_execution > 1
        if reads_first or not isinstance(iterator, tf.data.Iterator):
            return
        _, lack = attempt(partial(self._run, iterator))
        if lack is not None:
            self._journal.note(
                f"At the end of the {_PHASES[self._name]} data: {lack}. Stock Keras computes there once more what "
                "needs no batch, such as seeds and weight decay; results may differ from its from here on.",
                warn=True,
            )

    def _run(self, iterator: Any) -> None:
        try:
            self._function()(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            return
        self._journal.note("The data went on behind its end, and one more batch was trained.", warn=True)

    def _function(self) -> Any:
        key = "end of data", self._name
        if key not in self._kept:
            model = self._model
            with replaced(model, **{self._name: None}):
                getattr(model, f"make_{self._name}")(force=True)
                self._kept[key] = getattr(model, self._name)
        return self._kept[key]
