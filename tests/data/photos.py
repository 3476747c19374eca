"""Small photos for tests: smooth scenery with some noise, seeded."""

from pathlib import Path
from typing import Any

import numpy as np


def picture(height: int = 48, width: int = 64, seed: int = 0, noise: float = 4) -> Any:
    """Returns a uint8 image, different for each seed."""
    random = np.random.default_rng(seed)
    across, down = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 3, height))
    phases = random.uniform(0, 6, (3, 2))
    waves = [100 + 80 * np.sin(across + a) * np.cos(down + b) for a, b in phases]
    return np.clip(np.stack(waves, axis=2) + random.normal(0, noise, (height, width, 3)), 0, 255).astype(
        np.uint8
    )


def write_photo(path: Path, *, height: int = 48, width: int = 64, seed: int = 0, noise: float = 4) -> Path:
    """Writes a picture as JPEG, or as PNG by the path's ending."""
    import tensorflow as tf

    pixels = picture(height, width, seed, noise)
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = tf.io.encode_png(pixels) if path.suffix == ".png" else tf.io.encode_jpeg(pixels, quality=95)
    path.write_bytes(encoded.numpy())
    return path
