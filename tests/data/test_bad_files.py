"""Files that are no images: named, or left out and listed, and never a crash."""

import re
import struct
import warnings
import zlib

import keras
import pytest
import tensorflow as tf

import memfit
from data.photos import write_photo


def png_header(width, height):
    """A PNG that claims these dimensions and has no pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def animated_webp():
    flags = bytes([2, 0, 0, 0])
    body = b"WEBPVP8X" + struct.pack("<I", 10) + flags + bytes(6)
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.fixture
def mixed(tmp_path):
    """Four photos and six files of every kind of bad, with what is said about each."""
    for number in range(4):
        write_photo(tmp_path / f"good_{number}.jpg", seed=number)
    whole = (tmp_path / "good_0.jpg").read_bytes()
    bad = {
        "animated.webp": (animated_webp(), "animated|2.20"),
        "bomb.png": (png_header(60_000, 60_000), "3,600 million pixels"),
        "cut.jpg": (whole[: len(whole) // 2], "damaged or cut off"),
        "empty.jpg": (b"", "is empty"),
        "text.jpg": (b"this is a text, not an image", "is no JPEG, PNG"),
        "zeros.png": (png_header(0, 0), "is no JPEG|damaged"),
    }
    for name, (contents, _) in bad.items():
        (tmp_path / name).write_bytes(contents)
    return tmp_path, {name: reason for name, (_, reason) in bad.items()}


def test_by_default_the_first_bad_file_is_named(mixed):
    folder, _ = mixed
    dataset = memfit.images(folder, size=(8, 8), batch_size=2, shuffle=False, cache=None)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"animated\.webp is an? (animated )?WebP image"):
        list(dataset)


@pytest.mark.parametrize("cache", [None, "memory"])
def test_skipped_files_are_counted_and_listed_and_shrink_only_their_own_batch(mixed, cache):
    folder, reasons = mixed
    dataset = memfit.images(folder, size=(8, 8), batch_size=5, shuffle=False, on_error="skip", cache=cache)
    for _ in range(2):
        # Sorted: animated, bomb, cut, empty, good_0 | good_1, good_2, good_3, text, zeros
        assert [len(batch) for batch in dataset] == [1, 3]
    found = dataset.memfit.bad_files
    assert len(found) == 6
    for path, reason in found.reasons.items():
        assert re.search(reasons[path.rsplit("/")[-1]], reason), reason
    assert "bad file (6)" in repr(found)
    assert dataset.memfit.order.position.epoch == 2


def test_reported_files_are_warned_about_once(mixed):
    folder, _ = mixed
    dataset = memfit.images(folder, size=(8, 8), batch_size=10, shuffle=False, on_error="report", cache=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(dataset)
        list(dataset)
    assert len([one for one in caught if "Skipped" in str(one.message)]) == 6


def test_files_that_vanish_between_epochs_or_cannot_be_read_are_named(tmp_path):
    for number in range(3):
        write_photo(tmp_path / f"{number}.jpg", seed=number)
    dataset = memfit.images(tmp_path, size=(8, 8), batch_size=1, shuffle=False, cache=None)
    assert len(list(dataset)) == 3
    (tmp_path / "2.jpg").unlink()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"2\.jpg is not there"):
        list(dataset)
    (tmp_path / "2.jpg").mkdir()  # what nobody, root included, can read as a file
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"2\.jpg cannot be read"):
        list(dataset)


def test_batches_of_bad_files_alone_are_left_out_and_the_epoch_still_ends(mixed):
    folder, _ = mixed
    augment = [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1), lambda image: image]
    dataset = memfit.images(
        folder, size=(8, 8), batch_size=1, shuffle=False, on_error="skip", cache="memory", augment=augment
    )
    for epoch in range(2):
        assert len(list(dataset)) == 4  # the last file, and so the last batch, is bad
        assert dataset.memfit.order.position.epoch == epoch + 1
