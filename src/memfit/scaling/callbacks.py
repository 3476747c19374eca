"""Callbacks on several ranks: all of them decide alike, and rank 0 alone writes files."""

from typing import Any

import keras

_WRITERS = (
    keras.callbacks.ModelCheckpoint,
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


def callbacks_of_rank(callbacks: Any, rank: int) -> Any:
    """Returns the callbacks that a rank runs: every rank those that decide, and rank 0 those that write, too."""
    if rank == 0 or callbacks is None:
        return callbacks
    given = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks
    given = given if isinstance(given, list | tuple) else [given]
    kept = [callback for callback in given if not isinstance(callback, _WRITERS)]
    restores = keras.callbacks.BackupAndRestore
    return [_OnlyRestores(callback) if isinstance(callback, restores) else callback for callback in kept]
