"""The .fvecs, .bvecs and .ivecs files of the nearest-neighbour benchmarks.

Each row is a record: its length as a little-endian int32, then the values (float32, uint8 or int32). All
records must have the same length, so the file is a table whose first four bytes per row are a header.
"""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.binary_files import BinarySource, Places
from globular.data.versions import FileVersion
from globular.errors import DataError

_VALUES: dict[str, np.dtype[Any]] = {".fvecs": np.dtype("<f4"), ".bvecs": np.dtype("u1"), ".ivecs": np.dtype("<i4")}
_HEADER = np.dtype("<i4")
_MAX_COLUMNS = 1 << 24  # beyond it the first four bytes are hardly a length
_N_PROBES = 256


class VecsSource(BinarySource):
    """A file of records. Every header is compared as its row is read; opening looks at a sample.

    Comparing them all beforehand would read the whole file, which may be hundreds of gigabytes.
    """

    def __init__(self, path: Path) -> None:
        version = FileVersion.of(path)
        values = _VALUES[path.suffix.lower()]
        n_columns, n_rows = _layout(version, values)
        self._record = np.dtype([("length", _HEADER), ("values", values, (n_columns,))])
        strides = (self._record.itemsize, values.itemsize)
        super().__init__(version, Places(_HEADER.itemsize, (n_rows, n_columns), strides, values), str(path))
        self.take(np.unique(np.linspace(0, n_rows - 1, _N_PROBES).astype(np.intp)))

    def _rows_between(self, file: FileIO, first: int, last: int) -> NDArray[Any]:
        records = np.empty(last - first, self._record)
        self._fill(file, first * self._record.itemsize, records.view(np.uint8).data)
        wrong = np.flatnonzero(records["length"] != self.n_columns)
        if wrong.size:
            row = int(wrong[0])
            raise DataError(
                f"{self.name}: row {first + row} has length {records['length'][row]}, the first row {self.n_columns}; "
                "rows of different length are not supported, or the file is corrupt: write it again"
            )
        return records["values"]


def _layout(version: FileVersion, values: np.dtype[Any]) -> tuple[int, int]:
    """Columns and rows from the first header and the size of the file."""
    path = version.path
    first = np.fromfile(path, dtype=_HEADER, count=1)
    n_columns = int(first[0]) if first.size else 0
    if not 0 < n_columns <= _MAX_COLUMNS:
        raise DataError(f"{path}: is not a {path.suffix} file (its first row would have length {n_columns})")
    record = _HEADER.itemsize + n_columns * values.itemsize
    n_rows, rest = divmod(version.size, record)
    if rest:
        raise DataError(
            f"{path}: is truncated or not a {path.suffix} file: {version.size} bytes are {n_rows} rows of {n_columns} "
            f"values and {rest} bytes more; copy it again"
        )
    return n_columns, n_rows
