"""Writing arrays to `.npy` files row by row, before the number of rows is known."""

from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from memfit.errors import InvalidInput


class NpyFile:
    """A `.npy` file that grows; it has its name only once it is complete.

    Example:
        >>> with NpyFile(Path("rows.npy")) as file:     # doctest: +SKIP
        ...     file.append(np.zeros((2, 3)))
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unfinished = path.with_name(path.name + ".part")
        self._stream: BinaryIO = self._unfinished.open("wb")
        self._rows = 0
        self._shape: tuple[int, ...] | None = None
        self._dtype: Any = None

    def append(self, rows: np.ndarray[Any, Any]) -> None:
        """Writes rows behind those that are there."""
        if self._shape is None:
            # npy has no bfloat16; float32 holds all its values.
            self._dtype = np.dtype(np.float32) if rows.dtype.kind == "V" else rows.dtype
            self._shape = rows.shape[1:]
            self._write_header()
        elif rows.shape[1:] != self._shape:
            raise InvalidInput(
                "Outputs streamed to one file must have the same shape for every sample",
                received=f"{rows.shape[1:]} after {self._shape}",
                remedy="Predict without `out`, or pad the inputs to one length",
            )
        np.ascontiguousarray(rows, dtype=self._dtype).tofile(self._stream)
        self._rows += len(rows)

    def _write_header(self) -> None:
        # NumPy leaves room in the header for the first dimension to grow, so it can be written again in place.
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._rows, *(self._shape or ())),
        }
        np.lib.format.write_array_header_1_0(self._stream, header)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and self._shape is not None:
            self._stream.seek(0)
            self._write_header()
        self._stream.close()
        if kind is None and self._shape is not None:
            self._unfinished.replace(self.path)
        else:
            self._unfinished.unlink()
