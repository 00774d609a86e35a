"""HDF5 files: one two-dimensional dataset, read in slabs of a few megabytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import check_table
from globular.data.streamed import PIECE_BYTES, FileVersion, StreamedSource
from globular.errors import DataError, import_extra
from globular.machine import check_fits

_MOST_SLABS = 1 << 20  # a file may declare any number of rows without holding them
_MOST_LINKS = 16


class HDF5Source(StreamedSource):
    """A dataset of an .h5 file; the file is open only while rows are read."""

    def __init__(self, path: Path, dataset: str | None = None) -> None:
        self._path = path
        version = FileVersion.of(path)
        with version.reading(), _open(path) as file:
            self._dataset = _find(file, path, dataset)
            name = f"{path}::{self._dataset}"
            stored = file[self._dataset]
            # whoever sends a file must not choose what else is read
            if stored.external:
                places = stored.external[0][0]
                raise DataError(f"{name}: keeps its values in other files ({places}); write them into this one")
            if stored.is_virtual:
                raise DataError(
                    f"{name}: is put together from other datasets and files; write its values as one dataset"
                )
            check_table(stored.shape, stored.dtype, name)
            n_rows, n_columns = stored.shape
            self._slab = _slab_rows(stored, name)
            dtype = stored.dtype
        ends = [*range(0, n_rows, self._slab), n_rows]
        super().__init__(name, np.diff(ends), n_columns, dtype, version)

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        offset = segment * self._slab
        with _open(self._path) as file:
            try:
                rows = file[self._dataset][offset + first : offset + last]
            except (OSError, RuntimeError, KeyError, ValueError) as error:
                raise DataError(f"{self.name}: is truncated or corrupt ({error}); copy it again") from error
        yield np.asarray(rows)


def _open(path: Path) -> Any:
    h5py = import_extra("h5py", "h5py", "io", f"reading {path}")
    try:
        return h5py.File(path, "r")
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise DataError(f"{path}: is truncated, corrupt or not an HDF5 file; copy or write it again") from error


def _slab_rows(stored: Any, name: str) -> int:
    """Rows to read at a time: up to where the file's own chunks end, so that no chunk is decompressed twice."""
    n_rows, n_columns = stored.shape
    row_bytes = max(1, n_columns * stored.dtype.itemsize)
    rows = max(1, PIECE_BYTES // row_bytes, n_rows // _MOST_SLABS)
    chunk = stored.chunks[0] if stored.chunks else 1
    slab = min(-(-rows // chunk) * chunk, max(1, n_rows))
    check_fits(slab * row_bytes, f"{name}: its {slab} rows that are stored together", "write it in smaller chunks")
    return slab


def _follow(file: Any, path: Path, wanted: str) -> str:
    """The name of a dataset once its soft links are followed; a link to another file is refused, not opened."""
    import h5py

    for _ in range(_MOST_LINKS):
        walked = ""
        parts = [part for part in wanted.split("/") if part not in ("", ".")]
        for number, part in enumerate(parts):
            link = file.get(f"{walked}/{part}", getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise DataError(
                    f"{path}: {walked}/{part} is a link to another file ({link.filename}); open that file itself"
                )
            if isinstance(link, h5py.SoftLink):
                begin = "" if link.path.startswith("/") else walked
                wanted = "/".join([begin, link.path, *parts[number + 1 :]])
                break
            walked = f"{walked}/{part}"
        else:
            return walked.removeprefix("/")
    raise DataError(f"{path}: {wanted} is a link to a link to a link, more than {_MOST_LINKS} times")


def arrays_in_hdf5(path: Path) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """The name, shape and type of every dataset of an HDF5 file."""
    with _open(path) as file:
        return [(name, item.shape, item.dtype) for name, item in _datasets(file)]


def _datasets(file: Any) -> list[tuple[str, Any]]:
    """Every dataset of a file with its name."""
    import h5py

    found: list[tuple[str, Any]] = []

    def visit(name: str | bytes, item: Any) -> None:
        # a name that is not text comes as bytes, and does not open what it names
        if isinstance(name, str) and isinstance(item, h5py.Dataset):
            found.append((name, item))

    file.visititems(visit)
    return found


def _find(file: Any, path: Path, wanted: str | None) -> str:
    """Name of the dataset to read: the one asked for, or the only table of numbers."""
    import h5py

    try:
        tables = [name for name, item in _datasets(file) if item.ndim == 2 and item.dtype.kind in "biuf"]
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is truncated or corrupt ({error}); copy it again") from error
    listing = ", ".join(tables) or "none"
    if wanted is not None:
        found = _follow(file, path, wanted)
        if not isinstance(file.get(found or "/"), h5py.Dataset):
            raise DataError(f"{path}: has no dataset {wanted!r}; its two-dimensional datasets are: {listing}")
        return found
    if len(tables) != 1:
        raise DataError(
            f"{path}: needs one two-dimensional dataset of numbers to know which to read; it has: {listing}. "
            f"Choose one with {path}::NAME"
        )
    return tables[0]
