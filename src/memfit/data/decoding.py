"""From a file's bytes to pixels of the wanted size, in the graph: header first, at reduced scale, antialiased."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# A 60,000 x 60,000 image has 3.6 billion pixels, the largest cameras have 0.2 billion: above this it is a bomb.
MOST_PIXELS = 2**28
# The scales at which libjpeg can decode.
_RATIOS = (1, 2, 4, 8)


class _Kind(NamedTuple):
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
# The same as matrices over the first bytes of a file: what must be there (-1: anything), and what each byte counts.
_MAGIC = np.full((len(_KINDS), _HEAD), -1.0)
_FACTORS = np.zeros((len(_KINDS), 2, _HEAD))
for _row, _kind in enumerate(_KINDS):
    for _offset, _text in _kind.magic.items():
        _MAGIC[_row, _offset : _offset + len(_text)] = list(_text)
    for _column, (_offset, _count, _big) in enumerate((_kind.height, _kind.width)):
        _powers = 256.0 ** np.arange(_count)
        _FACTORS[_row, _column, _offset : _offset + _count] = _powers[::-1] if _big else _powers
_PACKED = np.array([[kind.packed, False] for kind in _KINDS])
_MODULUS = np.array([[kind.modulus] for kind in _KINDS], np.int64)
_PLUS = np.array([[kind.plus] for kind in _KINDS], np.int64)


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

    def jpeg() -> Any:
        in_file, scale, reduced = _jpeg_shapes(contents, size)
        with tf.control_dependencies([_refuse_bomb([in_file, reduced], [MOST_PIXELS, most_pixels])]):
            return tf.switch_case(
                scale, [lambda r=r: tf.io.decode_jpeg(contents, channels=channels, ratio=r) for r in _RATIOS]
            )

    def other() -> Any:
        with tf.control_dependencies([_refuse_bomb([_header_shape(contents)], [most_pixels])]):
            return _decode_other(contents, channels)

    image = tf.cond(_is_jpeg(contents), jpeg, other)
    image.set_shape((None, None, channels))
    return _resize(image, size, channels)


def _is_jpeg(contents: Any) -> Any:
    return tf.equal(tf.strings.substr(contents, 0, 3), b"\xff\xd8\xff")


def decoded_shape(contents: Any, size: tuple[int, int]) -> tuple[Any, Any]:
    """Returns height and width in the file, and as the decoder would put it out before it is resized."""

    def jpeg() -> Any:
        in_file, _, reduced = _jpeg_shapes(contents, size)
        return in_file, reduced

    return tf.cond(_is_jpeg(contents), jpeg, lambda: (_header_shape(contents),) * 2)


def is_animated_webp(contents: Any) -> Any:
    """Whether the flag for animations is set in the header of a WebP file."""
    head = tf.io.decode_raw(contents, tf.uint8, fixed_length=_HEAD)
    extended = tf.reduce_all(head[12:16] == list(b"VP8X"))
    return tf.logical_and(extended, tf.equal(tf.bitwise.bitwise_and(head[20], 2), 2))


def _header_shape(contents: Any) -> Any:
    """Height and width from the header of a PNG, GIF, BMP or WebP file; zeros for anything else."""
    # Padded, so that a file shorter than a header reads as zeros instead of failing here.
    head = tf.cast(tf.io.decode_raw(contents, tf.uint8, fixed_length=_HEAD), tf.float64)
    kinds = tf.reduce_all(tf.logical_or(head == _MAGIC, _MAGIC < 0), axis=1)
    # One product reads all the numbers that a header of any kind could hold; float64 is exact up to 2**53.
    numbers = tf.cast(tf.linalg.matvec(_FACTORS, head), tf.int64)
    # WebP packs two sizes of 14 bits into one number, or leaves two bits of each for scaling.
    unpacked = tf.where(_PACKED, numbers // 2**14, numbers) % _MODULUS + _PLUS
    # A bitmap stored from the top has a negative height.
    shapes = tf.where(unpacked >= 2**31, 2**32 - unpacked, unpacked)
    return tf.cast(tf.reduce_sum(tf.where(kinds[:, None], shapes, 0), axis=0), tf.int32)


def _jpeg_shapes(contents: Any, size: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Height and width in the file, the index of the largest ratio that leaves `size`, and what it leaves."""
    # Few ops on purpose, here and below: every op costs time when an epoch starts.
    in_file = tf.image.extract_jpeg_shape(contents)[:2]
    ratios = np.array(_RATIOS, np.int32)[:, None]
    reduced = (in_file + (ratios - 1)) // ratios
    fits = tf.reduce_all(reduced >= np.array(size, np.int32), axis=1)
    scale = tf.maximum(tf.reduce_sum(tf.cast(fits, tf.int32)) - 1, 0)
    return in_file, scale, tf.gather(reduced, scale)


def _refuse_bomb(shapes: list[Any], limits: list[int]) -> Any:
    pixels = tf.reduce_prod(tf.cast(tf.stack(shapes), tf.int64), axis=1)
    allowed = tf.reduce_all(tf.logical_and(pixels > 0, pixels <= limits))
    # The raw op: `tf.debugging.Assert` wraps it into a conditional.
    return tf.raw_ops.Assert(condition=allowed, data=[pixels])


def _decode_other(contents: Any, channels: int) -> Any:
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
    batch = image[tf.newaxis]
    shrinks = tf.reduce_all(tf.shape(image) >= np.array((*size, channels), np.int32))
    resized = tf.cond(
        shrinks,
        lambda: tf.raw_ops.ResizeArea(images=batch, size=size),
        lambda: tf.image.resize(batch, size, method="bilinear", antialias=True),
    )
    # Averages of bytes stay in their range, so adding a half and cutting off rounds them: nothing to clip.
    return tf.ensure_shape(tf.cast(resized[0] + 0.5, tf.uint8), (*size, channels))
