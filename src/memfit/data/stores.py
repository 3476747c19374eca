"""Where decoded images are kept: in RAM, or in a .npy file on disk that outlives the process."""

import errno
import fcntl
import os
import weakref
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

ABSENT, KEPT, BAD = 0, 1, 2
# Images written between two syncs: at most this much decoding is done again after a kill.
_SYNC_BYTES = 128 * 2**20


class MemoryStore:
    """Images in RAM by their number: each is absent, kept, or known to be bad.

    Pages that no image has been put in take no memory.
    """

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        self.states = np.zeros(count, np.uint8)
        self._images = np.empty((count, *shape), np.uint8)

    def refresh(self) -> None:
        """Nothing: no other process writes here."""

    def put(self, numbers: Any, images: Any) -> None:
        """Keeps images."""
        self._images[numbers] = images
        self.states[numbers] = KEPT

    def get(self, numbers: Any) -> Any:
        """Returns kept images as one new array."""
        return self._images[numbers]


class DiskStore:
    """Images in `images.npy` with their states in `states.npy`, one writer, any number of readers.

    Files are read and written by position and never mapped, so that they take page cache, which the system gives
    back when memory is short, and not the process's own memory. An image counts as kept only once it has been
    synced to the disk: a kill or a power cut costs the last few, and none is ever read half-written.
    """

    def __init__(self, folder: Path, count: int, shape: tuple[int, ...]) -> None:
        self._bytes = int(np.prod(shape))
        self._shape = shape
        self._header = (folder / "images.npy").stat().st_size - count * self._bytes
        self._states_header = (folder / "states.npy").stat().st_size - count
        self.states = np.zeros(count, np.uint8)
        self._images = os.open(folder / "images.npy", os.O_RDWR)
        self._states = os.open(folder / "states.npy", os.O_RDWR)
        self._user = os.open(folder / "users.lock", os.O_RDWR)
        fcntl.flock(self._user, fcntl.LOCK_SH)
        self._writer = os.open(folder / "writer.lock", os.O_RDWR)
        # Closing frees the locks; unlike `__del__`, a finalizer also runs before the interpreter is taken apart.
        weakref.finalize(self, _close, self._images, self._states, self._user, self._writer)
        self._writes = False
        self._unsynced: list[int] = []
        self.refresh()

    def refresh(self) -> None:
        """Takes note of what other processes have added, and takes over the writing where none writes."""
        if not self._writes:
            self._writes = try_lock(self._writer)
            on_disk = np.frombuffer(os.pread(self._states, len(self.states), self._states_header), np.uint8)
            self.states[on_disk == KEPT] = KEPT

    def put(self, numbers: Any, images: Any) -> None:
        """Keeps images if this process is the writer; a full disk ends the writing, not the training."""
        if not self._writes:
            return
        try:
            for number, image in zip(numbers, images, strict=True):
                os.pwrite(self._images, image.data, self._header + int(number) * self._bytes)
                self._unsynced.append(int(number))
            everything = np.count_nonzero(self.states) + len(self._unsynced) >= len(self.states)
            if everything or len(self._unsynced) * self._bytes >= _SYNC_BYTES:
                self.sync()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            self._writes, self._unsynced = False, []
            fcntl.flock(self._writer, fcntl.LOCK_UN)

    def sync(self) -> None:
        """Brings the images to the disk, then the note that they are there."""
        os.fdatasync(self._images)
        for number in self._unsynced:
            os.pwrite(self._states, bytes([KEPT]), self._states_header + number)
        self.states[self._unsynced] = KEPT
        self._unsynced = []

    def get(self, numbers: Any) -> Any:
        """Returns kept images as one new array."""
        images = np.empty((len(numbers), *self._shape), np.uint8)
        for row, number in enumerate(numbers):
            os.preadv(self._images, [images[row].data], self._header + int(number) * self._bytes)
        return images


def _close(*files: int) -> None:
    for file in files:
        os.close(file)


def try_lock(file: int | IO[str]) -> bool:
    """Takes a file's lock, which closing it frees; False where another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


Store: TypeAlias = MemoryStore | DiskStore
