"""HDF5 files: one two-dimensional dataset, read in slabs of a few megabytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import check_table
from globular.data.streamed import PIECE_BYTES, StreamedSource
from globular.errors import DataError, MissingExtraError


class HDF5Source(StreamedSource):
    """A dataset of an .h5 file; the file is open only while rows are read."""

    def __init__(self, path: Path, dataset: str | None = None) -> None:
        self._path = path
        with _open(path) as file:
            self._dataset = _find(file, path, dataset)
            stored = file[self._dataset]
            check_table(stored.shape, stored.dtype, f"{path}::{self._dataset}")
            n_rows, n_columns = stored.shape
            # slabs end where the file's own chunks end, so that no chunk is decompressed twice
            rows = max(1, PIECE_BYTES // max(1, n_columns * stored.dtype.itemsize))
            chunk = stored.chunks[0] if stored.chunks else 1
            self._slab = -(-rows // chunk) * chunk
            dtype = stored.dtype
        slabs = np.full(-(-n_rows // self._slab), self._slab)
        if n_rows % self._slab:
            slabs[-1] = n_rows % self._slab
        super().__init__(f"{path}::{self._dataset}", slabs, n_columns, dtype)

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        offset = segment * self._slab
        with _open(self._path) as file:
            try:
                rows = file[self._dataset][offset + first : offset + last]
            except (OSError, KeyError, ValueError) as error:
                raise DataError(f"{self.name}: is truncated or corrupt ({error}); copy it again") from error
        yield np.asarray(rows)


def _open(path: Path) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("h5py", "io", f"reading {path}") from error
    try:
        return h5py.File(path, "r")
    except OSError as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise DataError(f"{path}: is truncated, corrupt or not an HDF5 file; copy or write it again") from error


def _find(file: Any, path: Path, wanted: str | None) -> str:
    """Name of the dataset to read: the one asked for, or the only table of numbers."""
    import h5py

    tables: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.ndim == 2 and item.dtype.kind in "biuf":
            tables.append(name)

    file.visititems(visit)
    listing = ", ".join(tables) or "none"
    if wanted is not None:
        if not isinstance(file.get(wanted), h5py.Dataset):
            raise DataError(f"{path}: has no dataset {wanted!r}; its two-dimensional datasets are: {listing}")
        return wanted
    if len(tables) != 1:
        raise DataError(
            f"{path}: needs one two-dimensional dataset of numbers to know which to read; it has: {listing}. "
            f"Choose one with {path}::NAME"
        )
    return tables[0]
