"""Files of NumPy and SciPy, and others in which every value stands at a fixed place: records of .fvecs, memory maps.

A .npz file is read whole. Pickled objects are refused, never loaded. What stands at fixed places is read by calls and
not through a mapping, though that would be less to write: touching a mapped file that has become shorter kills the
process, and no check beforehand can exclude it. From the system's cache that costs a copy: about 0.4 s a gigabyte where
the mapping takes 0.3, and several times the mapping's time for many scattered rows.
"""

from __future__ import annotations

import math
import mmap
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.data import streamed
from globular.data.blocks import Matrix, Source, check_table
from globular.data.sources import ArraySource, CSRSource, MemmapSource
from globular.data.streamed import FileVersion, StreamedSource
from globular.errors import DataError
from globular.machine import check_fits

_GAP_BYTES = 1 << 12  # reading over this gap costs no more than another call
_COLUMNS_AT_ONCE = 16  # of a file in Fortran order: their values fill a cache line of the rows that are wanted
_VALUES: dict[str, np.dtype[Any]] = {".fvecs": np.dtype("<f4"), ".bvecs": np.dtype("u1"), ".ivecs": np.dtype("<i4")}
_HEADER = np.dtype("<i4")
_MAX_COLUMNS = 1 << 24  # beyond it the first four bytes are hardly a length
_N_PROBES = 256


@dataclass(frozen=True, slots=True)
class Places:
    """Where the values stand: value (n, d) at byte offset + n · strides[0] + d · strides[1]."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def by_rows(self) -> bool:
        """Whether each row is one run of bytes."""
        row_bytes = self.shape[1] * self.dtype.itemsize
        return self.strides[1] == self.dtype.itemsize and self.strides[0] >= row_bytes

    @property
    def by_columns(self) -> bool:
        """Whether each column is one run of bytes."""
        column_bytes = self.shape[0] * self.dtype.itemsize
        return self.strides[0] == self.dtype.itemsize and self.strides[1] >= column_bytes

    @property
    def end(self) -> int:
        """The first byte after the last value."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return self.offset + last + self.dtype.itemsize


class BinarySource(StreamedSource):
    """A table whose rows, or else whose columns, each stand together in a file."""

    def __init__(self, version: FileVersion, places: Places, name: str) -> None:
        check_table(places.shape, places.dtype, name)
        super().__init__(name, [places.shape[0]], places.shape[1], places.dtype, version)
        self._places = places
        self._file_version = version
        self.seeks = places.by_rows
        row_bytes = places.shape[1] * places.dtype.itemsize
        self._is_plain = places.by_rows and places.strides[0] == row_bytes
        """Whether the file has the rows one after the other with nothing between them."""

    def whole(self) -> Matrix:
        """Return every row in memory, read at one go."""
        self._check_whole()
        return next(self.blocks(self.n_rows)).rows if self.n_rows else super().whole()

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        has_gaps = self._places.by_rows and not self._is_plain
        step = min(max_rows, self._rows_per_read()) if has_gaps else max_rows
        with self._file_version.path.open("rb", buffering=0) as file:
            for low in range(first, last, step):
                yield self._rows_between(file, low, min(low + step, last))

    def _take_ascending(self, segment: int, rows: NDArray[np.intp]) -> Matrix:
        """Rows by ascending number; neighbours and near neighbours are read by one call."""
        taken = np.empty((rows.size, self.n_columns), self.dtype)
        content, row_bytes = taken.reshape(-1).view(np.uint8).data, self.n_columns * self.dtype.itemsize
        steps = np.diff(rows)
        apart = (steps * self._places.strides[0] > _GAP_BYTES) | (np.diff(rows // self._rows_per_read()) > 0)
        cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), rows.size]
        numbers = rows.tolist()
        n_uneven = [0, *np.cumsum(steps != 1).tolist()]  # equal at both ends of a run without gaps and repeats
        with self._file_version.reading(), self._file_version.path.open("rb", buffering=0) as file:
            for low, high in pairwise(cuts):
                first, last = numbers[low], numbers[high - 1] + 1
                if self._is_plain and n_uneven[low] == n_uneven[high - 1]:
                    begin = self._places.offset + first * row_bytes
                    self._fill(file, begin, content[low * row_bytes : high * row_bytes])
                else:
                    taken[low:high] = self._rows_between(file, first, last)[rows[low:high] - first]
        return taken

    def _rows_per_read(self) -> int:
        """Rows that a few megabytes of the file hold."""
        row_bytes = self._places.strides[0] if self._places.by_rows else self.n_columns * self.dtype.itemsize
        return max(1, streamed.PIECE_BYTES // max(1, row_bytes))

    def _rows_between(self, file: FileIO, first: int, last: int) -> NDArray[Any]:
        places = self._places
        if not places.by_rows:
            return self._from_columns(file, first, last)
        row_bytes = self.n_columns * self.dtype.itemsize
        content = np.empty((last - first - 1) * places.strides[0] + row_bytes, np.uint8)
        self._fill(file, places.offset + first * places.strides[0], content.data)
        return np.ndarray((last - first, self.n_columns), self.dtype, content.data, strides=places.strides)

    def _from_columns(self, file: FileIO, first: int, last: int) -> NDArray[Any]:
        """Rows in C order from a file in Fortran order, some columns at a time."""
        places = self._places
        rows = np.empty((last - first, self.n_columns), self.dtype)
        some = np.empty((_COLUMNS_AT_ONCE, last - first), self.dtype)
        for left in range(0, self.n_columns, _COLUMNS_AT_ONCE):
            right = min(left + _COLUMNS_AT_ONCE, self.n_columns)
            for column in range(left, right):
                begin = places.offset + column * places.strides[1] + first * self.dtype.itemsize
                self._fill(file, begin, some[column - left].view(np.uint8).data)
            rows[:, left:right] = some[: right - left].T
        return rows

    def _fill(self, file: FileIO, begin: int, content: memoryview) -> None:
        """Fill `content` with the bytes from `begin` on; one call may give fewer than it was asked for."""
        file.seek(begin)
        while (n_new := file.readinto(content)) < len(content):
            if not n_new:
                raise DataError(f"{self.name}: ends before its last row; copy it again")
            content = content[n_new:]


class VecsSource(BinarySource):
    """The .fvecs, .bvecs and .ivecs files of the nearest-neighbour benchmarks.

    Each row is a record: its length as a little-endian int32, then the values (float32, uint8 or int32). All have the
    same length. Every header is compared as its row is read; opening looks at a sample. Comparing them all beforehand
    would read the whole file, which may be hundreds of gigabytes.
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


_MAP_PROBES = 64  # rows by which a file is compared with a map of it
# what NumPy and zipfile raise on headers and archives that are truncated, corrupt or of another kind
_BAD_HEADER = (ValueError, TypeError, SyntaxError, TokenError, OverflowError)
_BROKEN = (*_BAD_HEADER, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def open_npy(path: Path) -> Source:
    """Open a .npy file; C and Fortran order both work, the latter with more disk seeks."""
    version = FileVersion.of(path)
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # for its header alone: no value is touched
    except _BAD_HEADER as error:
        raise _npy_error(path, str(error)) from error
    return BinarySource(version, Places(array.offset, array.shape, array.strides, array.dtype), str(path))


def _npy_error(path: Path, reason: str) -> DataError:
    """Say in the user's terms why NumPy refused the file."""
    if "Python objects" in reason or "allow_pickle" in reason:
        return DataError(
            f"{path}: holds Python objects, which are refused because loading them could run code; "
            "save an array of numbers, e.g. np.save(path, X.astype('float32'))"
        )
    if "magic string" in reason:
        return DataError(f"{path}: is not a .npy file although its name says so; write it with numpy.save")
    return DataError(f"{path}: is truncated or corrupt ({reason}); copy or write it again")


def open_npz(path: Path, wanted: str | None = None) -> Source:
    """Read a .npz file: the array asked for, a matrix of scipy.sparse.save_npz, the only array, or the one called X."""
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: is truncated or not a .npz file; write it with numpy.savez or scipy.sparse.save_npz")
    version = FileVersion.of(path)
    with version.reading():
        try:
            return _read_npz(path, wanted)
        except DataError:
            raise
        except _BROKEN as error:
            raise _npy_error(path, str(error)) from error


def _read_npz(path: Path, wanted: str | None) -> Source:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if wanted is None and {"format", "shape", "data"} <= set(archive.files):
            _check_sizes(path, archive, archive.files)
            file.seek(0)
            return CSRSource(sparse.load_npz(file), str(path))
        name = _choose_array(path, archive.files, wanted)
        _check_sizes(path, archive, [name])
        return ArraySource(archive[name], f"{path}::{name}" if name != "X" else str(path))


def arrays_in_npz(path: Path) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """The name, shape and type of every array of a .npz file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return [(name, *_read_header(archive, name)[:2]) for name in archive.files]
    except _BROKEN as error:
        raise _npy_error(path, str(error)) from error


def _read_header(archive: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and type that an array declares, and the bytes that it has in the archive."""
    member = archive.zip.getinfo(name if name in archive.zip.namelist() else f"{name}.npy")
    with archive.zip.open(member) as file:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        return shape, dtype, member.file_size - file.tell()


def _check_sizes(path: Path, archive: Any, names: list[str]) -> None:
    """Refuse arrays that are larger than their place in the archive or than memory, before they are asked for."""
    total = 0
    for name in names:
        shape, dtype, rest = _read_header(archive, name)
        size = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and size != rest:
            raise DataError(
                f"{path}: is truncated or corrupt ({name} declares {size:,} bytes of numbers and has {rest:,}); "
                "copy or write it again"
            )
        total += size
    check_fits(total, f"{path}: its {' and '.join(names)}", "write it as .npy, which is read in parts")


def _choose_array(path: Path, names: list[str], wanted: str | None) -> str:
    listing = ", ".join(names) if names else "none"
    if wanted is not None:
        if wanted not in names:
            raise DataError(f"{path}: has no array {wanted!r}; it holds: {listing}")
        return wanted
    if "X" in names:
        return "X"
    if len(names) == 1:
        return names[0]
    raise DataError(
        f"{path}: needs one array, or one called X, to know which to read; it holds: {listing}. "
        f"Choose one with {path}::NAME"
    )


def open_memmap(array: np.memmap[Any, Any]) -> Source:
    """The file behind a memory map, or where that does not hold what the map shows, the rows of the mapping.

    A map of mode "c" may have changes in memory alone, and a file may have been replaced since it was mapped.
    """
    name = str(array.filename)
    mapped = MemmapSource(array, name)
    path = Path(name)
    places = _places_of(array)
    if array.mode == "c" or not array.size or not (places.by_rows or places.by_columns) or not path.is_file():
        return mapped
    array._mmap.flush()  # type: ignore[attr-defined]  # what was written to the map is then in the file, with its time
    version = FileVersion.of(path)
    if version.size < places.end:
        raise DataError(
            f"{name}: has {version.size:,} bytes, fewer than the {places.end:,} that were mapped; it was cut off or "
            "replaced: map it again"
        )
    source = BinarySource(version, places, name)
    probes = np.unique(np.linspace(0, source.n_rows - 1, _MAP_PROBES).astype(np.intp))
    is_mapped_file = np.asarray(source.take(probes)).tobytes() == np.asarray(mapped.take(probes)).tobytes()
    return source if is_mapped_file else mapped


def _places_of(array: np.memmap[Any, Any]) -> Places:
    """Where in its file the values of a memory map stand, which may be a part of a larger map.

    Such a part has the offset of the map that it is of, so its place is found by addresses.
    """
    mapping = array._mmap  # type: ignore[attr-defined]
    begin = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
    inside = array.__array_interface__["data"][0] - begin
    mapped_from = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    return Places(mapped_from + inside, array.shape, array.strides, array.dtype)
