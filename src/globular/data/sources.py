"""Sources that lie in memory or in a memory-mapped file, and the door through which all data comes in."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.data.blocks import (
    Block,
    Matrix,
    Source,
    check_indices,
    check_not_empty,
    check_span,
    check_table,
)
from globular.data.streamed import PIECE_BYTES, ConcatenatedSource
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
]


RELEASE_BYTES = 128 * 2**20
"""How much of a mapped file may lie in this process's memory."""


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
        check_table(matrix.shape, matrix.dtype, name)
        rows = matrix.tocsr()
        if not rows.has_canonical_format:
            # sum_duplicates works in place: the caller's matrix must stay as it is
            rows = rows.copy() if rows is matrix else rows
            rows.sum_duplicates()
        super().__init__(rows, name)


class MemmapSource(_SlicedSource):
    """A memory-mapped file; blocks are views of the mapping, read from disk when they are touched."""

    is_sparse = False
    in_memory = False

    def __init__(self, array: NDArray[Any], name: str | None = None) -> None:
        title = name or str(getattr(array, "filename", None) or "X")
        check_table(array.shape, array.dtype, title)
        super().__init__(np.asarray(array), title)
        # pages of a private mapping may hold what its owner has written, and must stay
        shared = getattr(array, "mode", None) in ("r", "r+", "w+")
        self._mapping: Any = getattr(array, "_mmap", None) if shared else None
        self._n_touched = 0

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Give rows `start` to `stop` in order, `max_rows` at a time."""
        return map(self._counted, super().blocks(max_rows, start, stop))

    def _counted(self, block: Block) -> Block:
        self._touch((block.stop - block.start) * self.n_columns * self.dtype.itemsize)
        return block

    def _touch(self, n_bytes: int) -> None:
        """Let go of mapped pages now and then: they would count as this process's memory until somebody needs it.

        The system keeps what it likes of the file; a page that is wanted again is mapped again.
        """
        self._n_touched += n_bytes
        if self._n_touched > RELEASE_BYTES and hasattr(self._mapping, "madvise"):
            self._n_touched = 0
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        """Return these rows in this order, read in the order of the file so that the disk seeks little."""
        wanted = check_indices(indices, self.n_rows)
        order = np.argsort(wanted, kind="stable")
        rows = np.empty((wanted.size, self.n_columns), self.dtype)
        step = max(1, PIECE_BYTES // max(1, self.n_columns * self.dtype.itemsize))
        for low in range(0, wanted.size, step):
            some = order[low : low + step]
            rows[some] = self._rows[wanted[some]]
            self._touch(max(some.size * self.n_columns * self.dtype.itemsize, some.size * mmap.PAGESIZE))
        return rows

    def whole(self) -> Matrix:
        """Return a copy in memory, row after row."""
        return np.array(self._rows, order="C")


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
        return MemmapSource(X)
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
