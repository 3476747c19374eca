"""`predict`: Keras's own, in batches of its own size, with the outputs streamed to disk."""

from collections.abc import Iterator
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import keras
import numpy as np

from memfit.compat import keras_data
from memfit.errors import InvalidInput
from memfit.steps.installing import check_model, replaced
from memfit.steps.recipe import check_size
from memfit.training.batches import check_not_empty
from memfit.training.guard.evaluation import cut
from memfit.training.guard.events import Event, Journal
from memfit.training.guard.guarding import guarded_prediction
from memfit.training.npy_files import NpyFile
from memfit.training.peers import find_peers
from memfit.training.tiles.choosing import Tiles, check_alone
from memfit.training.tiles.tiling import Tiling


def predict(
    model: keras.Model,
    x: Any,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    *,
    micro_batch: int | None = None,
    tiles: Tiles | None = None,
    out: str | PathLike[str] | None = None,
    events: list[Event] | None = None,
) -> Any:
    """Predicts as `model.predict` does: in smaller batches or tiles, and streamed to disk, if asked to.

    A batch that runs out of memory is predicted again in smaller parts.

    Args:
        model: A model.
        micro_batch: Samples to compute at once; None for whole batches, as stock Keras does.
        tiles: For images and volumes that do not fit one at a time: the side of the tiles that each is computed in
            (or a side for each axis), the positions around it that the network looks at included, or "auto" for
            tiles that fit the free memory. The outputs are those of the whole image (`docs/large-inputs.md`).
        out: A file name ending in ".npy". Every batch's outputs are appended to it and freed, so neither
            the device nor the host ever holds all of them. A model with several outputs writes one file for
            each: "scores.npy" becomes "scores.<output>.npy".
        events: A list to append to what happened: an event, also logged as a warning, each time memory ran out.

    Returns:
        Without `out`, what `model.predict` returns. With `out`, the same structure of read-only arrays mapped
        from the files.

    Raises:
        InvalidInput: With `tiles`, if a layer looks at the whole image, or a tile is not larger than its halo.
        OutOfMemory: If there is no memory for even the smallest parts.
    """
    check_model(model)
    check_not_empty(x)
    check_size("micro_batch", micro_batch)
    if tiles is not None:
        check_alone(tiles, micro_batch)
        tiling = Tiling(model, tiles, "prediction", Journal(events))
        prediction: Any = replaced(model, predict_function=tiling.predict)
    else:
        prediction = guarded_prediction(model, Journal(events), find_peers())
    with prediction:
        if out is None and micro_batch is None and tiles is None:
            return model.predict(x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks)
        batches = _predict_batches(model, x, batch_size, verbose, steps, callbacks, micro_batch)
        return _concatenate(list(batches)) if out is None else _stream(model, batches, _npy_path(out))


def _npy_path(out: str | PathLike[str]) -> Path:
    path = Path(out)
    if path.suffix != ".npy":
        raise InvalidInput("Predictions must be written to a .npy file", received=str(out))
    if not path.parent.is_dir():
        raise InvalidInput("Predictions must be written to an existing directory", received=str(path.parent))
    return path


def _predict_batches(
    model: keras.Model,
    x: Any,
    batch_size: int | None,
    verbose: str | int,
    steps: int | None,
    callbacks: Any,
    micro_batch: int | None,
) -> Iterator[Any]:
    """Yields the outputs of one batch after the other as NumPy arrays, driving callbacks as Keras does."""
    iterator = keras_data.epoch_iterator(model, x, batch_size, steps)
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = keras.callbacks.CallbackList(
            callbacks,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=1,
            steps=iterator.num_batches,
            model=model,
        )
    model.make_predict_function()
    model.stop_predicting = False
    callbacks.on_predict_begin()
    with iterator.catch_stop_iteration():
        for begin_step, end_step, batches in iterator:
            callbacks.on_predict_batch_begin(begin_step)
            data = keras_data.next_batches(model, batches)
            pieces = [part for batch in data for part in cut(batch, micro_batch)]
            outputs = _concatenate([_to_numpy(model.predict_function([part])) for part in pieces])
            callbacks.on_predict_batch_end(end_step, {"outputs": outputs})
            yield outputs
            if model.stop_predicting:
                break
    callbacks.on_predict_end()


def _to_numpy(outputs: Any) -> Any:
    return keras.tree.map_structure(
        lambda leaf: leaf if isinstance(leaf, np.ndarray) else leaf.numpy(), outputs
    )


def _concatenate(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def _stream(model: keras.Model, batches: Iterator[Any], path: Path) -> Any:
    files: list[NpyFile] = []
    structure: Any = None
    with ExitStack() as stack:
        for outputs in batches:
            arrays = keras.tree.flatten(outputs)
            if not files:
                structure = outputs
                for name in _file_names(model, outputs, path):
                    files.append(stack.enter_context(NpyFile(name)))
            for file, array in zip(files, arrays, strict=True):
                file.append(array)
    if not files:
        raise InvalidInput("There must be at least one sample to predict", received="no sample")
    return keras.tree.pack_sequence_as(structure, [np.load(file.path, mmap_mode="r") for file in files])


def _file_names(model: keras.Model, outputs: Any, path: Path) -> list[Path]:
    count = len(keras.tree.flatten(outputs))
    if count == 1:
        return [path]
    names = sorted(outputs) if isinstance(outputs, dict) else list(getattr(model, "output_names", None) or [])
    if len(names) != count:
        names = [str(index) for index in range(count)]
    return [path.with_suffix(f".{str(name).replace('/', '_')}.npy") for name in names]
