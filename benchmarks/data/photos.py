"""Photos like a camera's, made from a seed: scenery, sharp edges, sensor noise, JPEG at a camera's quality.

`python benchmarks/data/photos.py FOLDER --count 64 --width 500 --height 375` writes them into one folder per
class, as `memfit.images` and `keras.utils.image_dataset_from_directory` expect.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

# Cameras write JPEG at 90 to 95 with 4:2:0 chroma; phones and web services resize to about the same quality.
QUALITY = 92
# Noise of a small sensor in daylight, in levels of 256. With it a 12-megapixel photo takes about 4 MB, as from a
# phone or a camera.
SENSOR_NOISE = 6.0


def photo(width: int, height: int, seed: int) -> Any:
    """Returns one photo as a uint8 array: 1/f scenery, some sharp-edged things in it, noise over all."""
    import tensorflow as tf

    random = np.random.default_rng(seed)
    # Half the resolution, then doubled: a lens and a colour filter array leave no more real detail than that.
    half = (height // 2, width // 2)
    image = np.zeros((*half, 3), np.float32)
    octave, strength = 3, 60.0
    while octave < max(width, height) / 4:
        detail = random.normal(0, strength, (octave, octave, 3)).astype(np.float32)
        # Most detail of a photo is in its brightness: colours vary less.
        detail = 0.75 * detail.mean(axis=2, keepdims=True) * 1.7 + 0.25 * detail
        image += tf.image.resize(detail, half, method="bicubic").numpy()
        octave, strength = octave * 2, strength * 0.55
    image = tf.image.resize(image, (height, width)).numpy() + random.uniform(90, 160, 3).astype(np.float32)
    for _ in range(12):
        left, top = random.integers(0, width), random.integers(0, height)
        right, bottom = left + random.integers(1, width // 3), top + random.integers(1, height // 3)
        image[top:bottom, left:right] = image[top:bottom, left:right] * 0.5 + random.uniform(0, 128, 3)
    image += SENSOR_NOISE * random.standard_normal(image.shape, np.float32)
    return np.clip(image, 0, 255).astype(np.uint8)


def write_photos(
    folder: Path, *, count: int, width: int, height: int, seed: int = 0, copies: int = 1
) -> None:
    """Writes `count` JPEG photos into two sub-folders; files that exist already are kept.

    With `copies` every photo is there under that many names: as much to decode, and less to make.
    """
    import tensorflow as tf

    for number in range(count):
        file = folder / f"class_{number % 2}" / f"photo_{number:04d}.jpg"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = photo(width, height, seed * 100_000 + number)
            file.write_bytes(tf.io.encode_jpeg(pixels, quality=QUALITY).numpy())
        for copy in range(1, copies):
            other = file.with_stem(f"{file.stem}_{copy}")
            if not other.exists():
                other.hardlink_to(file)


def main() -> None:
    """Reads the command line and writes the photos."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_photos(
        arguments.folder,
        count=arguments.count,
        width=arguments.width,
        height=arguments.height,
        seed=arguments.seed,
    )


if __name__ == "__main__":
    main()
