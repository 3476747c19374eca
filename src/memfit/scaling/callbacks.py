"""Callbacks on several ranks: all of them decide alike, and rank 0 alone writes files."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras

from memfit.compat.attributes import overridden
from memfit.scaling.survivors import meeting_others
from memfit.steps.sharded_state import sharded_state
from memfit.training.monitoring.monitoring import list_callbacks

# Not ModelCheckpoint: it decides as well (the best so far), and saves through its model, which only rank 0 does.
_WRITERS = (
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
)


class _OnlyRestores(keras.callbacks.Callback):
    """Lets a `BackupAndRestore` read what rank 0 has written before, and write nothing."""

    def __init__(self, own: keras.callbacks.BackupAndRestore) -> None:
        super().__init__()
        self._own = own

    def set_params(self, params: Any) -> None:
        self._own.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        self._own.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self._own.on_train_begin(logs)


class _GathersState(keras.callbacks.Callback):
    """Brings an optimizer's state that is dealt out to ranks together before others save it."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (shard := sharded_state(self.model)) is not None:
            with meeting_others():
                shard.gather()


def is_of_rank_0(callback: Any) -> bool:
    """Whether a callback only writes, for people or files, so that other ranks do without it."""
    kinds = (*_WRITERS, keras.callbacks.ProgbarLogger, keras.callbacks.BackupAndRestore, _OnlyRestores)
    return isinstance(callback, kinds)


def saving_of_rank(model: keras.Model, rank: int) -> AbstractContextManager[None]:
    """Lets a model be saved by rank 0 alone: on the others `save` and `save_weights` do nothing for a while."""
    if rank == 0:
        return nullcontext()
    return overridden(model, save=_save_nothing, save_weights=_save_nothing)


def _save_nothing(*args: Any, **kwargs: Any) -> None:
    """Stands in for a method that writes a file."""


def callbacks_of_rank(callbacks: Any, rank: int) -> Any:
    """Returns the callbacks that a rank runs: every rank those that decide, and rank 0 those that write, too."""
    given = list_callbacks(callbacks)
    if rank:
        kept = [callback for callback in given if not isinstance(callback, _WRITERS)]
        restores = keras.callbacks.BackupAndRestore
        given = [_OnlyRestores(callback) if isinstance(callback, restores) else callback for callback in kept]
    return [_GathersState(), *given]
