"""Random changes to a batch of images: after the cache, on the CPU, drawn from (seed, epoch, batch).

A Keras layer draws from its own counter, which in a parallel pipeline depends on which thread came first, and
which cannot be set back to the middle of an epoch. Here each batch has its own seed instead, so the same batch
looks the same in every run, in any order, and after a resume.
"""

import inspect
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from memfit.compat.keras_layers import seeded
from memfit.errors import InvalidInput

Step = Callable[[Any, Any, Any], tuple[Any, Any]]
# Callables without a seed of their own draw from Python's and NumPy's global generators; one at a time may.
_GLOBAL_GENERATORS = threading.Lock()


def augmenter(steps: Sequence[Any], size: tuple[int, int], channels: int) -> Step:
    """Returns one function `(images, labels, seed) -> (images, labels)` for all the steps, uint8 in and out.

    Args:
        steps: Keras preprocessing layers, functions of one NumPy image, or Albumentations-style callables.
        size: Height and width of the images.
        channels: Their channels.

    Raises:
        InvalidInput: If a step is not callable, or scales the images away from 0..255.
    """
    made = [_step(step, size, channels) for step in steps]

    def augment(images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        for number, step in enumerate(made):
            images, labels = step(images, labels, tf.random.experimental.stateless_fold_in(seed, number))
        return images, labels

    return augment


def _step(step: Any, size: tuple[int, int], channels: int) -> Step:
    import keras

    if isinstance(step, keras.Layer):
        _refuse_scaling(step)
        return _layer_step(step)
    if not callable(step):
        raise InvalidInput(
            "An augmentation is a Keras layer, a function of one image, or an Albumentations-style callable",
            received=step,
        )
    return _function_step(step, size, channels)


def _layer_step(layer: Any) -> Step:
    import keras
    import tensorflow as tf

    # These two mix the labels along with the images.
    mixes = isinstance(layer, keras.layers.MixUp | keras.layers.CutMix)

    def run(images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        with seeded(layer, seed):
            if mixes:
                result = layer({"images": tf.cast(images, tf.float32), "labels": labels}, training=True)
                images, labels = result["images"], result["labels"]
            else:
                images = _call_in_training(layer, images)
        return tf.saturate_cast(tf.round(images), tf.uint8), labels

    return run


def _call_in_training(layer: Any, images: Any) -> Any:
    """Layers such as Resizing take no `training`."""
    takes = inspect.signature(layer.call).parameters
    return layer(images, training=True) if "training" in takes else layer(images)


def _refuse_scaling(layer: Any) -> None:
    """Images stay 0..255 until the device: a layer that scales them would leave zeros and ones."""
    import keras

    inner = [layer, *getattr(layer, "layers", [])]
    if any(isinstance(one, keras.layers.Rescaling | keras.layers.Normalization) for one in inner):
        raise InvalidInput(
            "Images stay uint8, 0 to 255, until they are on the device; scaling belongs in the model",
            received=layer,
            remedy="Put keras.layers.Rescaling(1 / 255) first in the model",
        )


def _function_step(function: Any, size: tuple[int, int], channels: int) -> Step:
    """Calls a Python function image by image and keeps the shape, which numpy_function would lose."""
    import tensorflow as tf

    call = _albumentations(function) if _takes_image_keyword(function) else function
    wants_generator = "rng" in inspect.signature(call).parameters
    probe = np.random.default_rng(0).integers(0, 256, (*size, channels), dtype=np.uint8)
    shape = _as_image(_seeded_call(call, function, probe, 0, wants_generator), function).shape

    def loop(images: Any, seeds: Any) -> Any:
        changed = np.empty((len(images), *shape), np.uint8)
        for number, (image, seed) in enumerate(zip(images, seeds, strict=True)):
            changed[number] = _as_image(
                _seeded_call(call, function, image, int(seed), wants_generator), function
            )
        return changed

    def run(images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        seeds = tf.random.stateless_uniform([tf.shape(images)[0]], seed, 0, 2**31 - 1, tf.int32)
        with tf.name_scope("memfit"):
            changed = tf.numpy_function(loop, [images, seeds], tf.uint8, stateful=False)
        return tf.ensure_shape(changed, (images.shape[0], *shape)), labels

    return run


def _takes_image_keyword(function: Any) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(
        parameter.kind is parameter.VAR_KEYWORD
        or (parameter.name == "image" and parameter.kind is parameter.KEYWORD_ONLY)
        for parameter in parameters
    )


def _albumentations(transform: Any) -> Callable[[Any], Any]:
    def call(image: Any) -> Any:
        return transform(image=image)["image"]

    return call


def _seeded_call(call: Any, original: Any, image: Any, seed: int, wants_generator: bool) -> Any:
    if wants_generator:
        return call(image, rng=np.random.default_rng(seed))
    with _GLOBAL_GENERATORS:
        if hasattr(original, "set_random_seed"):  # Albumentations from 1.4.19 on
            original.set_random_seed(seed)
            return call(image)
        before = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed)
        try:
            return call(image)
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _as_image(result: Any, function: Any) -> Any:
    image = np.asarray(result)
    if image.ndim != 3:
        raise InvalidInput(
            "An augmentation returns one image of three dimensions",
            received=f"shape {image.shape} from {function!r}",
        )
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind == "f" and image.size and image.max() <= 1.0 and image.min() >= 0.0:
        raise InvalidInput(
            "An augmentation returns an image of 0 to 255, like the one it was given",
            received=f"values from {image.min():g} to {image.max():g} from {function!r}",
            remedy="Leave scaling to the model: keras.layers.Rescaling(1 / 255)",
        )
    return np.clip(np.round(image), 0, 255).astype(np.uint8)
