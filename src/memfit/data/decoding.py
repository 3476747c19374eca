"""From a file's bytes to pixels of the wanted size, in the graph: header first, at reduced scale, antialiased."""

from dataclasses import dataclass
from typing import Any

import numpy as np

# A 60,000 x 60,000 image has 3.6 billion pixels, the largest cameras have 0.2 billion: above this it is a bomb.
MOST_PIXELS = 2**28
# The scales at which libjpeg can decode.
_RATIOS = (1, 2, 4, 8)


@dataclass(frozen=True)
class _Kind:
    """How a kind of file begins, and where its height and width are: (first byte, number of bytes, big-endian)."""

    magic: dict[int, bytes]
    height: tuple[int, int, bool]
    width: tuple[int, int, bool]
    modulus: int = 2**32
    plus: int = 0
    packed: bool = False  # the height is above the lowest 14 bits of the number


_WEBP = {0: b"RIFF", 8: b"WEBP"}
_KINDS = (
    _Kind({0: b"\x89PNG"}, (20, 4, True), (16, 4, True)),
    _Kind({0: b"GIF8"}, (8, 2, False), (6, 2, False)),
    _Kind({0: b"BM"}, (22, 4, False), (18, 4, False)),
    _Kind({**_WEBP, 12: b"VP8X"}, (27, 3, False), (24, 3, False), plus=1),
    _Kind({**_WEBP, 12: b"VP8L"}, (21, 4, False), (21, 4, False), modulus=2**14, plus=1, packed=True),
    _Kind({**_WEBP, 12: b"VP8 "}, (28, 2, False), (26, 2, False), modulus=2**14),
)
_HEAD = 32


def _tables() -> tuple[Any, ...]:
    magic = np.full((len(_KINDS), _HEAD), -1.0)
    numbers = np.zeros((2 * len(_KINDS), _HEAD))
    for row, kind in enumerate(_KINDS):
        for offset, text in kind.magic.items():
            magic[row, offset : offset + len(text)] = list(text)
        for column, (offset, count, big) in enumerate((kind.height, kind.width)):
            powers = 256.0 ** np.arange(count)
            numbers[2 * row + column, offset : offset + count] = powers[::-1] if big else powers
    packed = np.array([flag for kind in _KINDS for flag in (kind.packed, False)])
    modulus = np.array([kind.modulus for kind in _KINDS for _ in range(2)], np.int64)
    plus = np.array([kind.plus for kind in _KINDS for _ in range(2)], np.int64)
    return magic, numbers, packed, modulus, plus


_MAGIC, _NUMBERS, _PACKED, _MODULUS, _PLUS = _tables()


def decode(contents: Any, size: tuple[int, int], channels: int, most_pixels: int = MOST_PIXELS) -> Any:
    """Returns the image in `contents` as uint8 of shape `(*size, channels)`.

    The header is read before anything is decoded, and an image that is too large fails there. A JPEG photo is
    decoded at 1/2, 1/4 or 1/8 where that is still at least as large as `size`. Shrinking averages areas, which
    is an antialiasing filter and several times as fast as TensorFlow's antialiased bilinear one.

    Args:
        contents: The bytes of a JPEG, PNG, GIF (its first frame), BMP or WebP file, told apart by content.
        size: Height and width.
        channels: 1 or 3.
        most_pixels: The most that the decoder may put out, at its reduced scale.
    """
    import tensorflow as tf

    def jpeg() -> Any:
        in_file, scale, reduced = _jpeg_shapes(contents, size)
        with tf.control_dependencies([_refuse_bomb([in_file, reduced], [MOST_PIXELS, most_pixels])]):
            return tf.switch_case(
                scale, [lambda r=r: tf.io.decode_jpeg(contents, channels=channels, ratio=r) for r in _RATIOS]
            )

    def other() -> Any:
        with tf.control_dependencies([_refuse_bomb([header_shape(contents)], [most_pixels])]):
            return _decode_other(contents, channels)

    image = tf.cond(is_jpeg(contents), jpeg, other)
    image.set_shape((None, None, channels))
    return _resize(image, size, channels)


def is_jpeg(contents: Any) -> Any:
    """Whether the bytes begin as a JPEG file does."""
    import tensorflow as tf

    return tf.equal(tf.strings.substr(contents, 0, 3), b"\xff\xd8\xff")


def decoded_shape(contents: Any, size: tuple[int, int]) -> tuple[Any, Any]:
    """Returns height and width in the file, and as the decoder would put it out before it is resized."""
    import tensorflow as tf

    def jpeg() -> Any:
        in_file, _, reduced = _jpeg_shapes(contents, size)
        return in_file, reduced

    def other() -> Any:
        shape = header_shape(contents)
        return shape, shape

    return tf.cond(is_jpeg(contents), jpeg, other)


def is_animated_webp(contents: Any) -> Any:
    """Whether the flag for animations is set in the header of a WebP file."""
    import tensorflow as tf

    head = tf.io.decode_raw(contents, tf.uint8, fixed_length=_HEAD)
    extended = tf.reduce_all(head[12:16] == list(b"VP8X"))
    return tf.logical_and(extended, tf.equal(tf.bitwise.bitwise_and(head[20], 2), 2))


def header_shape(contents: Any) -> Any:
    """Returns height and width from the header of a PNG, GIF, BMP or WebP file; zeros for anything else."""
    import tensorflow as tf

    # Padded, so that a file shorter than a header reads as zeros instead of failing here.
    head = tf.cast(tf.io.decode_raw(contents, tf.uint8, fixed_length=_HEAD), tf.float64)
    kinds = tf.reduce_all(tf.logical_or(head == _MAGIC, _MAGIC < 0), axis=1)
    # One product reads all the numbers that a header of any kind could hold; float64 is exact up to 2**53.
    numbers = tf.cast(tf.linalg.matvec(_NUMBERS, head), tf.int64)
    # WebP packs two sizes of 14 bits into one number, or leaves two bits of each for scaling.
    unpacked = tf.where(_PACKED, numbers // 2**14, numbers) % _MODULUS + _PLUS
    # A bitmap stored from the top has a negative height.
    unpacked = tf.where(unpacked >= 2**31, 2**32 - unpacked, unpacked)
    shapes = tf.reshape(unpacked, (-1, 2))
    return tf.cast(tf.reduce_sum(tf.where(kinds[:, None], shapes, 0), axis=0), tf.int32)


def _jpeg_shapes(contents: Any, size: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Height and width in the file, the index of the largest ratio that leaves `size`, and what it leaves."""
    import tensorflow as tf

    # Few ops on purpose, here and below: every op costs time when an epoch starts.
    in_file = tf.image.extract_jpeg_shape(contents)[:2]
    ratios = np.array(_RATIOS, np.int32)[:, None]
    reduced = (in_file + (ratios - 1)) // ratios
    fits = tf.reduce_all(reduced >= np.array(size, np.int32), axis=1)
    scale = tf.maximum(tf.reduce_sum(tf.cast(fits, tf.int32)) - 1, 0)
    return in_file, scale, tf.gather(reduced, scale)


def _refuse_bomb(shapes: list[Any], limits: list[int]) -> Any:
    import tensorflow as tf

    pixels = tf.reduce_prod(tf.cast(tf.stack(shapes), tf.int64), axis=1)
    allowed = tf.reduce_all(tf.logical_and(pixels > 0, pixels <= limits))
    # The raw op: `tf.debugging.Assert` wraps it into a conditional.
    return tf.raw_ops.Assert(condition=allowed, data=[pixels])


def _decode_other(contents: Any, channels: int) -> Any:
    import tensorflow as tf

    def others() -> Any:
        return tf.io.decode_image(contents, channels=channels, expand_animations=False)

    if not hasattr(tf.io, "decode_webp"):  # TensorFlow before 2.20: `explain` names the remedy
        return others()

    def webp() -> Any:
        # TensorFlow 2.21 writes past its buffer for an animation ("free(): invalid next size"): refused before.
        still = tf.raw_ops.Assert(condition=tf.logical_not(is_animated_webp(contents)), data=[channels])
        with tf.control_dependencies([still]):
            # The op gives the file's own channels or fails: alpha is dropped as for the other formats.
            image = tf.io.decode_webp(contents)[0, ..., :3]
        return image if channels == 3 else tf.image.rgb_to_grayscale(image)

    # A file shorter than this fails here, which is right: it is no image.
    return tf.cond(tf.equal(tf.strings.substr(contents, 8, 4), b"WEBP"), webp, others)


def _resize(image: Any, size: tuple[int, int], channels: int) -> Any:
    import tensorflow as tf

    batch = image[tf.newaxis]

    def shrunk() -> Any:
        return tf.raw_ops.ResizeArea(images=batch, size=size)

    def grown() -> Any:
        return tf.image.resize(batch, size, method="bilinear", antialias=True)

    smaller = tf.reduce_all(tf.shape(image) >= np.array((*size, channels), np.int32))
    resized = tf.cond(smaller, shrunk, grown)
    # Averages of bytes stay in their range, so adding a half and cutting off rounds them: nothing to clip.
    return tf.ensure_shape(tf.cast(resized[0] + 0.5, tf.uint8), (*size, channels))
