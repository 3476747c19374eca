"""The disk cache: never stale, never half-read, safe under two processes and kills, bounded."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import memfit
from data.photos import write_photo
from memfit.data.disk_cache import entries, open_cache, remove
from memfit.data.stores import KEPT


@pytest.fixture
def photos(tmp_path):
    for number in range(8):
        write_photo(tmp_path / "photos" / f"{number}.jpg", seed=number)
    return tmp_path / "photos"


def made(photos, cache, **more):
    return memfit.images(photos, size=(8, 8), batch_size=4, cache=cache, shuffle=False, **more)


def pixels(dataset):
    return np.concatenate([batch.numpy() for batch in dataset])


def test_a_second_run_reads_the_first_ones_images_and_a_changed_file_is_read_anew(photos, tmp_path):
    cache = tmp_path / "cache"
    first = pixels(made(photos, cache))
    (entry,) = entries(cache)
    assert (entry.images, entry.kept) == (8, 8)
    # Were a file read again, it would be the wrong one: same identity, other contents.
    stat = (photos / "0.jpg").stat()
    (photos / "0.jpg").write_bytes(b"x" * stat.st_size)
    os.utime(photos / "0.jpg", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    np.testing.assert_array_equal(pixels(made(photos, cache)), first)
    write_photo(photos / "0.jpg", seed=99)
    changed = pixels(made(photos, cache))
    assert (changed[0] != first[0]).any()
    np.testing.assert_array_equal(changed[1:], first[1:])
    pixels(memfit.images(photos, size=(9, 9), cache=cache))
    assert len(entries(cache)) == 3  # another file, another size: a cache each


def test_epochs_from_disk_ram_and_files_are_the_same(photos, tmp_path):
    plain, disk, ram = made(photos, None), made(photos, tmp_path / "cache"), made(photos, "memory")
    expected = pixels(plain)
    for dataset in (disk, disk, ram, ram):
        np.testing.assert_array_equal(pixels(dataset), expected)


def store_in(folder, files, shape=(4, 4, 3)):
    return open_cache(folder, files, shape, {})


def test_an_image_counts_only_when_it_is_synced(tmp_path, monkeypatch):
    files = [str(tmp_path / str(number)) for number in range(3)]
    store = store_in(tmp_path / "c", files)
    store.put(np.array([1]), np.full((1, 4, 4, 3), 7, np.uint8))
    assert store.states.tolist() == [0, 0, 0]
    del store
    store = store_in(tmp_path / "c", files)
    assert store.states.tolist() == [0, 0, 0]  # as after a power cut: not synced, not there
    store.put(np.array([1]), np.full((1, 4, 4, 3), 7, np.uint8))
    store.sync()
    del store
    store = store_in(tmp_path / "c", files)
    assert store.states.tolist() == [0, KEPT, 0]
    assert (store.get(np.array([1])) == 7).all()


def test_two_users_of_a_cache_have_one_writer(tmp_path):
    files = [str(tmp_path / str(number)) for number in range(2)]
    first, second = store_in(tmp_path / "c", files), store_in(tmp_path / "c", files)
    second.put(np.array([0]), np.zeros((1, 4, 4, 3), np.uint8))  # not the writer: nothing happens
    first.put(np.array([0, 1]), np.full((2, 4, 4, 3), 5, np.uint8))
    second.refresh()
    assert second.states.tolist() == [KEPT, KEPT]
    assert (second.get(np.array([0, 1])) == 5).all()
    with pytest.raises(memfit.InvalidInput, match="in use"):
        remove(tmp_path / "c", entries(tmp_path / "c")[0].key)
    del first, second
    remove(tmp_path / "c", entries(tmp_path / "c")[0].key)
    assert entries(tmp_path / "c") == []


WRITER = """
import sys, time
import numpy as np
from pathlib import Path
from memfit.data.disk_cache import open_cache
store = open_cache(Path(sys.argv[1]), sys.argv[2].split(","), (4, 4, 3), {})
store.put(np.array([0]), np.full((1, 4, 4, 3), 9, np.uint8)); store.sync()
store.put(np.array([1]), np.full((1, 4, 4, 3), 9, np.uint8))
print("written", flush=True)
time.sleep(60)
"""


def test_what_a_killed_process_had_finished_is_used_and_its_place_as_writer_is_free(tmp_path):
    files = [str(tmp_path / str(number)) for number in range(3)]
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "c"), ",".join(files)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline().strip() == "written"
    reader = store_in(tmp_path / "c", files)
    reader.put(np.array([1]), np.zeros((1, 4, 4, 3), np.uint8))
    assert reader.states.tolist() == [KEPT, 0, 0]
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    reader.refresh()
    reader.put(np.array([1, 2]), np.full((2, 4, 4, 3), 8, np.uint8))
    assert reader.states.tolist() == [KEPT, KEPT, KEPT]
    assert reader.get(np.array([0, 1]))[:, 0, 0, 0].tolist() == [9, 8]


def test_a_cache_with_a_damaged_file_is_made_anew(tmp_path):
    files = [str(tmp_path / str(number)) for number in range(2)]
    store_in(tmp_path / "c", files)
    (entry,) = entries(tmp_path / "c")
    with (tmp_path / "c" / entry.key / "images.npy").open("r+b") as stream:
        stream.truncate(100)
    assert store_in(tmp_path / "c", files).states.tolist() == [0, 0]


def test_the_size_of_all_caches_is_bounded_and_the_longest_unused_goes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMFIT_CACHE_LIMIT", "2500")
    folder = tmp_path / "c"
    for name in ("a", "b"):
        assert store_in(folder, [str(tmp_path / name)], (10, 30, 3)) is not None
        time.sleep(0.02)
    old, new = sorted(entry.used for entry in entries(folder))
    assert store_in(folder, [str(tmp_path / "c")], (10, 30, 3)) is not None
    kept = [entry.used for entry in entries(folder)]
    assert len(kept) == 2
    assert new in kept
    assert old not in kept
    assert store_in(folder, [str(tmp_path / "d")], (100, 30, 3)) is None
    assert len(entries(folder)) == 2  # nothing was thrown away for what has no room anyhow


def test_auto_takes_ram_if_it_fits_else_disk_else_none(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path / "cache"))

    def cache_of(**more):
        return memfit.images(photos, batch_size=1, cache="auto", **more).memfit.cache

    assert cache_of(size=(8, 8)).startswith("in RAM")
    assert cache_of(size=(512, 512), memory="10MiB").startswith("on disk, 6.0 MiB")
    monkeypatch.setenv("MEMFIT_CACHE_LIMIT", "1MiB")
    assert cache_of(size=(513, 513), memory="10MiB").startswith("none: ")
    with pytest.raises(memfit.InvalidInput, match="disk cache of"):
        memfit.images(photos, size=(514, 514), cache="disk")


def test_a_full_disk_ends_the_caching_and_not_the_training(photos, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    expected = pixels(made(photos, None))
    monkeypatch.setattr(os, "pwrite", full)
    dataset = made(photos, tmp_path / "cache")
    for _ in range(2):
        np.testing.assert_array_equal(pixels(dataset), expected)
    assert entries(tmp_path / "cache")[0].kept == 0
