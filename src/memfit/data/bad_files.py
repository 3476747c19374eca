"""Files that are no images: raised, or left out and listed."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf

from memfit.data.decoding import MOST_PIXELS, decode, decoded_shape, is_animated_webp
from memfit.errors import InvalidInput
from memfit.tables import table

POLICIES = ("raise", "skip", "report")
_REMEDY = 'Remove or repair the file, or pass on_error="skip" to leave such files out and have them listed'


@dataclass
class BadFiles:
    """The policy for files that cannot be decoded, and those met so far.

    Attributes:
        policy: "raise" ends the iteration with the file's name, "skip" leaves the file out, "report" leaves it
            out and warns.
        reasons: File to reason, in the order in which they were met.
    """

    policy: str
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InvalidInput(f"on_error is one of {', '.join(POLICIES)}", received=self.policy)

    def __len__(self) -> int:
        return len(self.reasons)

    def __repr__(self) -> str:
        if not self.reasons:
            return "no bad files met"
        return table(list(self.reasons.items()), head=[f"bad file ({len(self.reasons)})", "why"])

    def meet(self, paths: Sequence[str], size: tuple[int, int], channels: int, most_pixels: int) -> None:
        """Acts on files that the pipeline could not decode.

        Raises:
            InvalidInput: Under "raise", naming the first of the files and what is wrong with it.
        """
        for path in paths:
            if path in self.reasons:
                continue
            reason = explain(path, size, channels, most_pixels)
            if self.policy == "raise":
                raise InvalidInput(f"Every file must be an image: {path} {reason}", remedy=_REMEDY)
            self.reasons[path] = reason
            if self.policy == "report":
                warnings.warn(f"Skipped: {path} {reason}.", stacklevel=2)


def explain(path: str, size: tuple[int, int], channels: int, most_pixels: int) -> str:
    """Returns what is wrong with a file, as the end of a sentence that begins with its name."""
    try:
        contents = Path(path).read_bytes()
    except FileNotFoundError:
        return "is not there (any more)"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not contents:
        return "is empty"
    in_file, decoded = _pixels(contents, size)
    if in_file > MOST_PIXELS:
        return (
            f"has {in_file / 1e6:,.0f} million pixels, more than any photo ({MOST_PIXELS / 1e6:,.0f} million)"
        )
    if decoded > most_pixels:
        return f"takes {decoded / 1e6:,.1f} million pixels of memory, more than half of the pipeline's budget"
    if in_file == 0:
        return f"is no JPEG, PNG, GIF, BMP or WebP image (it begins with {contents[:8]!r})"
    if contents[8:12] == b"WEBP" and not hasattr(tf.io, "decode_webp"):
        return f"is a WebP image, which TensorFlow decodes from 2.20 on (this is {tf.__version__})"
    if contents[8:12] == b"WEBP" and bool(is_animated_webp(tf.constant(contents))):
        return "is an animated WebP image, which TensorFlow cannot decode safely"
    try:
        tf.function(decode, autograph=False)(tf.constant(contents), size, channels, most_pixels)
    except tf.errors.OpError as error:
        # TensorFlow's message without the names of functions and nodes.
        text = str(error.message).split("\n")[0].split("[[")[0].split("}}")[-1]
        return f"is damaged or cut off ({text.strip().rstrip('.')[:160]})"
    return "could not be decoded at that moment, and can be now: it was being written, or memory ran out"


def _pixels(contents: bytes, size: tuple[int, int]) -> tuple[int, int]:
    """The pixels in the file, and of what the decoder puts out."""
    try:
        shapes = decoded_shape(tf.constant(contents), size)
    except tf.errors.OpError:
        return 1, 1  # the header itself is damaged: decoding says how
    return math.prod(map(int, shapes[0])), math.prod(map(int, shapes[1]))
