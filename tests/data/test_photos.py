"""The benchmark's photos: seeded, and as large on disk as a camera's."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "data"))
import photos


def test_photos_come_from_the_seed_and_are_compressed_like_a_cameras(tmp_path):
    np.testing.assert_array_equal(photos.photo(200, 150, 1), photos.photo(200, 150, 1))
    assert (photos.photo(200, 150, 1) != photos.photo(200, 150, 2)).any()
    photos.write_photos(tmp_path, count=2, width=800, height=600, copies=2)
    files = sorted(tmp_path.rglob("*.jpg"))
    assert [str(file.relative_to(tmp_path)) for file in files] == [
        "class_0/photo_0000.jpg",
        "class_0/photo_0000_1.jpg",
        "class_1/photo_0001.jpg",
        "class_1/photo_0001_1.jpg",
    ]
    # A phone's or camera's photo of 12 million pixels takes 2 to 6 MB.
    assert all(0.16 < file.stat().st_size / (800 * 600) < 0.5 for file in files)
