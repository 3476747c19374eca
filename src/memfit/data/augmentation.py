"""Random changes to a batch of images: after the cache, on the CPU, drawn from (seed, epoch, batch).

A Keras layer draws from its own counter, which in a parallel pipeline depends on which thread came first, and
which cannot be set back to the middle of an epoch. Here each batch has its own seed instead, so the same batch
looks the same in every run, in any order, and after a resume.
"""

import inspect
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from memfit.compat.keras_layers import seeded
from memfit.compat.tf_graphs import Tensor
from memfit.data.peeking import keep_random_numbers
from memfit.errors import InvalidInput

Step = Callable[[Tensor, Tensor, "Draw"], tuple[Tensor, Tensor]]
# Callables without a seed of their own draw from Python's and NumPy's global generators; one at a time may.
_GLOBAL_GENERATORS = threading.Lock()


class Draw(NamedTuple):
    """What the random numbers of a batch are drawn from, and which of them these images have.

    Attributes:
        seed: That of the whole batch.
        first: The number of the first image in the whole batch: a rank of several has only its share.
        samples: The images of the whole batch.
    """

    seed: Tensor
    first: Tensor
    samples: Tensor


def mixes_samples(augmentations: Sequence[Any]) -> bool:
    """Whether what becomes of an image may depend on others of its batch; not by functions and most layers."""
    return any(
        isinstance(one, keras.layers.MixUp | keras.layers.CutMix)
        or not type(one).__module__.startswith("keras.")
        for augmentation in augmentations
        if isinstance(augmentation, keras.Layer)
        for one in [augmentation, *getattr(augmentation, "layers", [])]
    )


def augmenter(augmentations: Sequence[Any], size: tuple[int, int], channels: int) -> Step:
    """Returns one function `(images, labels, draw) -> (images, labels)` for all of them, uint8 in and out.

    Raises:
        InvalidInput: If one is not callable, or scales the images away from 0..255.
    """
    steps = [_step(augmentation, (*size, channels)) for augmentation in augmentations]

    def augment(images: Tensor, labels: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        for number, step in enumerate(steps):
            seed = tf.random.experimental.stateless_fold_in(draw.seed, number)
            images, labels = step(images, labels, draw._replace(seed=seed))
        return images, labels

    return augment


def _step(augmentation: Any, shape: tuple[int, ...]) -> Step:
    if isinstance(augmentation, keras.Layer):
        return _layer_step(augmentation)
    if not callable(augmentation):
        raise InvalidInput(
            "An augmentation must be a Keras layer, a function of one image, or an Albumentations-style callable",
            received=augmentation,
        )
    return _function_step(augmentation, shape)


def _layer_step(layer: Any) -> Step:
    inner = [layer, *getattr(layer, "layers", [])]
    # Images stay 0..255 until the device: a layer that scales them would leave zeros and ones.
    if any(isinstance(one, keras.layers.Rescaling | keras.layers.Normalization) for one in inner):
        raise InvalidInput(
            "Images stay uint8, 0 to 255, until they are on the device; scaling belongs in the model",
            received=layer,
            remedy="Put keras.layers.Rescaling(1 / 255) first in the model",
        )
    mixes_labels = isinstance(layer, keras.layers.MixUp | keras.layers.CutMix)
    # Layers such as Resizing take no `training`.
    options = {"training": True} if "training" in inspect.signature(layer.call).parameters else {}

    def run(images: Tensor, labels: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        with seeded(layer, draw.seed):
            if mixes_labels:
                mixed = layer({"images": tf.cast(images, tf.float32), "labels": labels}, **options)
                images, labels = mixed["images"], mixed["labels"]
            else:
                # A layer draws for as many images as it is given: the others of the batch are zeros here.
                end = draw.first + tf.shape(images)[0]
                images = layer(_among_zeros(images, draw), **options)[draw.first : end]
        return tf.saturate_cast(tf.round(images), tf.uint8), labels

    return run


def _among_zeros(images: Tensor, draw: Draw) -> Tensor:
    samples = tf.shape(images)[0]

    def pad() -> Tensor:
        return tf.pad(images, [[draw.first, draw.samples - draw.first - samples], [0, 0], [0, 0], [0, 0]])

    return tf.cond(samples < draw.samples, pad, lambda: images)


def _function_step(function: Any, shape: tuple[int, ...]) -> Step:
    """Calls a Python function image by image and keeps the shape, which numpy_function would lose."""
    parameters = inspect.signature(function).parameters
    takes_keyword = any(
        parameter.kind is parameter.VAR_KEYWORD
        or (parameter.name == "image" and parameter.kind is parameter.KEYWORD_ONLY)
        for parameter in parameters.values()
    )

    def call(image: Any, seed: int) -> Any:
        if "rng" in parameters and not takes_keyword:
            return function(image, rng=np.random.default_rng(seed))
        with _GLOBAL_GENERATORS, keep_random_numbers():
            if hasattr(function, "set_random_seed"):  # Albumentations from 1.4.19 on
                function.set_random_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            return function(image=image)["image"] if takes_keyword else function(image)

    probe = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    result_shape = _as_image(call(probe, 0), function).shape

    def loop(images: Any, seeds: Any) -> Any:
        changed = np.empty((len(images), *result_shape), np.uint8)
        for number, (image, seed) in enumerate(zip(images, seeds, strict=True)):
            changed[number] = _as_image(call(image, int(seed)), function)
        return changed

    def run(images: Tensor, labels: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        seeds = tf.random.stateless_uniform([draw.samples], draw.seed, 0, 2**31 - 1, tf.int32)
        seeds = seeds[draw.first : draw.first + tf.shape(images)[0]]
        with tf.name_scope("memfit"):
            changed = tf.numpy_function(loop, [images, seeds], tf.uint8, stateful=False)
        return tf.ensure_shape(changed, (images.shape[0], *result_shape)), labels

    return run


def _as_image(result: Any, function: Any) -> Any:
    image = np.asarray(result)
    if image.ndim != 3:
        raise InvalidInput(
            "An augmentation must return one image with three dimensions",
            received=f"shape {image.shape} from {function!r}",
        )
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind == "f" and image.size and image.max() <= 1.0 and image.min() >= 0.0:
        raise InvalidInput(
            "An augmentation must return an image from 0 to 255, like its input",
            received=f"values from {image.min():g} to {image.max():g} from {function!r}",
            remedy="Leave scaling to the model: keras.layers.Rescaling(1 / 255)",
        )
    return np.clip(np.round(image), 0, 255).astype(np.uint8)
