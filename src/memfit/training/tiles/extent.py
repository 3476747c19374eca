"""One axis of a tensor in a tile: where it lies in the image, and which of its values are the whole image's."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from memfit.errors import MemfitError


class Misaligned(MemfitError):
    """A tile that a layer would compute with other positions or another padding than the whole image."""


@dataclass(frozen=True)
class Extent:
    """An axis of a tensor that a network computes from a tile of its input.

    Attributes:
        size: Positions in the tile.
        whole: Positions in the whole image's tensor.
        first: Which of the whole's positions the tile's first one is.
        low: The first position of the tile whose value is the whole image's; minus infinity at the image's border,
            where padding is the whole image's, too.
        high: The position after the last such one; infinity at the image's border.
        scale: Positions for each position of the input.
    """

    size: int
    whole: int
    first: int = 0
    low: float = -math.inf
    high: float = math.inf
    scale: Fraction = Fraction(1)

    @classmethod
    def cut(cls, whole: int, first: int, size: int) -> "Extent":
        """Returns a tile of an image's axis."""
        low = 0 if first > 0 else -math.inf
        high = size if first + size < whole else math.inf
        return cls(size, whole, first, low, high)

    def valid(self) -> tuple[int, int]:
        """Returns the first position whose value is the whole image's, and the one after the last."""
        return int(max(self.low, 0)), int(min(self.high, self.size))

    def slide(self, kernel: int, stride: int, dilation: int, padding: str) -> "Extent":
        """Returns what a convolution or a pooling makes of the axis.

        Raises:
            Misaligned: If its windows would lie elsewhere than in the whole image.
        """
        span = (kernel - 1) * dilation + 1
        pad = _pad_before(self.size, span, stride, padding)
        if pad != _pad_before(self.whole, span, stride, padding) or self.first % stride:
            raise Misaligned(f"windows of {kernel} with strides of {stride} do not line up")
        # The window of position j covers the inputs from j * stride - pad on, `span` of them.
        return Extent(
            _count_windows(self.size, span, stride, padding),
            _count_windows(self.whole, span, stride, padding),
            self.first // stride,
            _ceil((self.low + pad) / stride),
            _floor((self.high + pad - span) / stride) + 1,
            self.scale / stride,
        )._checked()

    def spread(self, kernel: int, stride: int, padding: str) -> "Extent":
        """Returns what a transposed convolution makes of the axis."""
        pad = max(kernel - stride, 0) // 2 if padding == "same" else 0
        extra = max(kernel - stride, 0) if padding == "valid" else 0
        # Position o is made of the inputs i with 0 <= o + pad - i * stride < kernel.
        return Extent(
            self.size * stride + extra,
            self.whole * stride + extra,
            self.first * stride,
            (self.low - 1) * stride + kernel - pad,
            self.high * stride - pad,
            self.scale * stride,
        )._checked()

    def enlarge(self, factor: int, reach: int) -> "Extent":
        """Returns what upsampling makes of the axis, with values that depend on neighbours up to `reach` away."""
        return Extent(
            self.size * factor,
            self.whole * factor,
            self.first * factor,
            (self.low + reach) * factor,
            (self.high - reach) * factor,
            self.scale * factor,
        )

    def pad(self, before: int, after: int) -> "Extent":
        """Returns the axis with zeros around it; with negative numbers cropped."""
        added = before + after
        return replace(
            self,
            size=self.size + added,
            whole=self.whole + added,
            low=self.low + before,
            high=self.high + before,
        )._checked()

    def merge(self, other: "Extent") -> "Extent":
        """Returns the axis of two tensors' sum, or of them beside each other.

        Raises:
            Misaligned: If their positions are not the same ones of the image.
        """
        if replace(self, low=0, high=0) != replace(other, low=0, high=0):
            raise Misaligned("tensors of other positions are put together")
        return replace(self, low=max(self.low, other.low), high=min(self.high, other.high))

    def _checked(self) -> "Extent":
        if self.size < 1 or (self.high == math.inf and self.first + self.size != self.whole):
            raise Misaligned("the tile ends elsewhere than the image")
        # Beyond the tile's own positions there is only padding, which at a cut is not the image's.
        low = self.low if math.isinf(self.low) else max(self.low, 0)
        high = self.high if math.isinf(self.high) else min(self.high, self.size)
        return replace(self, low=low, high=high)


def _pad_before(size: int, span: int, stride: int, padding: str) -> int:
    """The zeros that a layer puts before the first position."""
    if padding == "same":
        return max((-(-size // stride) - 1) * stride + span - size, 0) // 2
    return span - 1 if padding == "causal" else 0


def _count_windows(size: int, span: int, stride: int, padding: str) -> int:
    return -(-size // stride) if padding in ("same", "causal") else (size - span) // stride + 1


def _ceil(position: float) -> float:
    return position if math.isinf(position) else math.ceil(position)


def _floor(position: float) -> float:
    return position if math.isinf(position) else math.floor(position)
