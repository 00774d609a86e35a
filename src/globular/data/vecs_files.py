"""The .fvecs, .bvecs and .ivecs files of the nearest-neighbour benchmarks, mapped into memory.

Each row is a record: its length as a little-endian int32, then the values (float32, uint8 or int32). All
records must have the same length, so the file is a table whose first four bytes per row are a header.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import Block, Matrix
from globular.data.sources import MemmapSource
from globular.errors import DataError

_VALUES: dict[str, np.dtype[Any]] = {".fvecs": np.dtype("<f4"), ".bvecs": np.dtype("u1"), ".ivecs": np.dtype("<i4")}
_HEADER = np.dtype("<i4")
_MAX_COLUMNS = 1 << 24  # beyond it the first four bytes are hardly a length
_N_PROBES = 256


class VecsSource(MemmapSource):
    """A mapped file of records. Every header is compared as its row is read; opening looks at a sample.

    Comparing them all beforehand would read the whole file, which may be hundreds of gigabytes.
    """

    def __init__(self, path: Path) -> None:
        values = _VALUES[path.suffix.lower()]
        n_columns, n_rows = _layout(path, values)
        record = np.dtype([("length", _HEADER), ("values", values, (n_columns,))])
        records = np.memmap(path, dtype=record, mode="r", shape=(n_rows,))
        super().__init__(records["values"], str(path))
        self._lengths = np.asarray(records["length"])
        self._check(np.unique(np.linspace(0, n_rows - 1, _N_PROBES).astype(np.intp)))

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Give rows `start` to `stop` in order, `max_rows` at a time."""
        return map(self._checked, super().blocks(max_rows, start, stop))

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        """Return these rows in this order."""
        rows = super().take(indices)
        self._check(np.asarray(indices, dtype=np.intp))
        return rows

    def whole(self) -> Matrix:
        """Return a copy in memory."""
        self._check(np.arange(self.n_rows))
        return super().whole()

    def _checked(self, block: Block) -> Block:
        self._check(np.arange(block.start, block.stop))
        return block

    def _check(self, rows: NDArray[np.intp]) -> None:
        """Raise if one of these rows starts with another length than the first."""
        wrong = np.flatnonzero(self._lengths[rows] != self.n_columns)
        if wrong.size:
            row = int(rows[wrong[0]])
            raise DataError(
                f"{self.name}: row {row} has length {self._lengths[row]}, the first row {self.n_columns}; "
                "rows of different length are not supported, or the file is corrupt: write it again"
            )


def _layout(path: Path, values: np.dtype[Any]) -> tuple[int, int]:
    """Columns and rows from the first header and the size of the file."""
    size = path.stat().st_size
    first = np.fromfile(path, dtype=_HEADER, count=1)
    n_columns = int(first[0]) if first.size else 0
    if not 0 < n_columns <= _MAX_COLUMNS:
        raise DataError(f"{path}: is not a {path.suffix} file (its first row would have length {n_columns})")
    record = _HEADER.itemsize + n_columns * values.itemsize
    n_rows, rest = divmod(size, record)
    if rest:
        raise DataError(
            f"{path}: is truncated or not a {path.suffix} file: {size} bytes are {n_rows} rows of {n_columns} "
            f"values and {rest} bytes more; copy it again"
        )
    return n_columns, n_rows
