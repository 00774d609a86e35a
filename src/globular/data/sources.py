"""Sources that lie in memory or in a mapped file, and the door through which all data comes in."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.data.binary_files import BinarySource, Places
from globular.data.blocks import (
    Block,
    Matrix,
    Source,
    check_indices,
    check_not_empty,
    check_span,
    check_table,
)
from globular.data.sparse_rows import checked_csr
from globular.data.streamed import ConcatenatedSource
from globular.data.versions import FileVersion
from globular.errors import DataError

__all__ = [
    "ArraySource",
    "Block",
    "CSRSource",
    "ConcatenatedSource",
    "Matrix",
    "MemmapSource",
    "Source",
    "as_source",
    "open_memmap",
]


_N_PROBES = 64
"""Rows by which a file is compared with a map of it."""


class _SlicedSource:
    """What every source has that can be sliced: its rows are a matrix, a block is a slice of it."""

    def __init__(self, rows: Matrix, name: str) -> None:
        self.name = name
        self.n_rows, self.n_columns = (int(size) for size in rows.shape)
        self.dtype: np.dtype[Any] = rows.dtype
        self._rows = rows

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Give rows `start` to `stop` in order, `max_rows` at a time."""
        first, last = check_span(max_rows, start, stop, self.n_rows)
        spans = ((low, min(low + max_rows, last)) for low in range(first, last, max_rows))
        return (Block(low, high, self._rows[low:high]) for low, high in spans)

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        """Return these rows in this order."""
        return self._rows[check_indices(indices, self.n_rows)]

    def whole(self) -> Matrix:
        """Return every row; nothing is copied."""
        return self._rows


class ArraySource(_SlicedSource):
    """A two-dimensional array in memory, of any real dtype; blocks are views of it."""

    is_sparse = False
    in_memory = True

    def __init__(self, array: NDArray[Any], name: str = "X", column_names: tuple[str, ...] | None = None) -> None:
        check_table(array.shape, array.dtype, name)
        super().__init__(np.asarray(array), name)
        self.column_names = column_names


class CSRSource(_SlicedSource):
    """A sparse matrix in memory, kept as CSR with sorted column numbers and no duplicates."""

    is_sparse = True
    in_memory = True

    def __init__(self, matrix: Any, name: str = "X") -> None:
        super().__init__(checked_csr(matrix, name), name)


class MemmapSource(_SlicedSource):
    """A memory map whose rows are read through the mapping, and handed out as copies."""

    is_sparse = False
    in_memory = False

    def __init__(self, array: NDArray[Any], name: str) -> None:
        check_table(array.shape, array.dtype, name)
        super().__init__(np.asarray(array), name)

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Give rows `start` to `stop` in order, `max_rows` at a time."""
        views = super().blocks(max_rows, start, stop)
        return (Block(view.start, view.stop, np.array(view.rows, order="C")) for view in views)

    def whole(self) -> Matrix:
        """Return a copy in memory, row after row."""
        return np.array(self._rows, order="C")


def open_memmap(array: np.memmap[Any, Any]) -> Source:
    """The file behind a memory map, or where that does not hold what the map shows, the rows of the mapping.

    A map of mode "c" may have changes in memory alone, and a file may have been replaced since it was mapped.
    """
    name = str(array.filename)
    check_table(array.shape, array.dtype, name)
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
    probes = np.unique(np.linspace(0, source.n_rows - 1, _N_PROBES).astype(np.intp))
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
    shape, strides = (int(array.shape[0]), int(array.shape[1])), (array.strides[0], array.strides[1])
    return Places(mapped_from + inside, shape, strides, array.dtype)


def as_source(X: object) -> Source:
    """Make a source of whatever a user passes as data.

    Parameters
    ----------
    X : ndarray, memmap, scipy sparse matrix or array, pandas DataFrame, list of lists, path, or Source
        The table. A path is opened by :func:`globular.io.open_source`; a source is returned as it is.

    Returns
    -------
    Source
        With at least one row and one column. Arrays are not copied, memmaps are not read.

    Raises
    ------
    TypeError
        If `X` is none of these.
    globular.errors.DataError
        If it is empty, not two-dimensional, or does not hold real numbers (a ``ValueError``).

    Examples
    --------
    >>> import numpy as np
    >>> from globular.data.sources import as_source
    >>> source = as_source(np.arange(6, dtype=np.uint8).reshape(3, 2))
    >>> [block.rows.tolist() for block in source.blocks(max_rows=2)]
    [[[0, 1], [2, 3]], [[4, 5]]]
    """
    source = _wrap(X)
    check_not_empty(source.n_rows, source.n_columns, source.name)
    return source


def _wrap(X: object) -> Source:
    """Choose the source for `X` by its type."""
    if isinstance(X, str | os.PathLike):
        from globular.data.formats import open_path  # formats build on the sources of this module

        return open_path(X)
    if isinstance(X, np.ma.MaskedArray):
        raise TypeError("X is a masked array, and its mask would be lost; pass X.filled(...) or drop the rows")
    if isinstance(X, np.memmap) and X.filename is not None:  # a copy of a memmap has no file behind it
        return open_memmap(X)
    if isinstance(X, np.ndarray):
        return ArraySource(X)
    if sparse.issparse(X):
        return CSRSource(X)
    if isinstance(X, list | tuple):
        return ArraySource(_from_lists(X))
    if all(hasattr(X, attribute) for attribute in ("dtypes", "columns", "to_numpy", "iloc")):
        names = tuple(X.columns)  # type: ignore[attr-defined]
        return ArraySource(_from_frame(X), column_names=names if all(isinstance(name, str) for name in names) else None)
    if isinstance(X, Source):
        return X
    raise TypeError(
        f"X must be an array, a memmap, a scipy sparse matrix, a pandas DataFrame, a list of lists, a path "
        f"or a Source, got {type(X).__module__}.{type(X).__qualname__}; try numpy.asarray(X)"
    )


def _from_lists(rows: list[Any] | tuple[Any, ...]) -> NDArray[Any]:
    """Turn nested lists into an array; ragged ones get our message rather than NumPy's."""
    try:
        return np.asarray(rows)
    except ValueError as error:
        raise DataError("X: the rows are not equally long; give every row the same number of values") from error


def _from_frame(frame: Any) -> NDArray[Any]:
    """Turn a pandas DataFrame into an array; a column that is not numeric is named."""
    kinds = [getattr(dtype, "kind", "O") for dtype in frame.dtypes]
    other = [str(column) for column, kind in zip(frame.columns, kinds, strict=True) if kind not in "biuf"]
    if other:
        raise DataError(
            f"X: the DataFrame has columns that are not numeric: {', '.join(map(repr, other))}; "
            "select the others, e.g. X.select_dtypes('number')"
        )
    values = cast(NDArray[Any], frame.to_numpy())
    if values.dtype.kind in "biuf":
        return values
    # nullable and mixed columns come out as objects; a missing value becomes NaN, which fit then reports
    return cast(NDArray[Any], frame.to_numpy(dtype=np.float64, na_value=np.nan))
