"""Sources that lie in memory or in a mapped file, and some of the rows of a source as a source of their own.

Sparse matrices are checked before any compiled code follows their indices: SciPy takes index arrays on trust, and so do
its conversions and our kernels, which would read and write the memory of others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.data.blocks import Matrix, RowBlock, Source, check_finite, check_indices, check_span, check_table, regroup
from globular.data.streamed import ConcatenatedSource, starts_of_segments
from globular.errors import DataError
from globular.machine import check_fits


class _SlicedSource:
    """What every source has that can be sliced: its rows are a matrix, a block is a slice of it."""

    seeks = True

    def __init__(self, rows: Matrix, name: str) -> None:
        self.name = name
        self.n_rows, self.n_columns = (int(size) for size in rows.shape)
        self.dtype: np.dtype[Any] = rows.dtype
        self._rows = rows

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[RowBlock]:
        first, last = check_span(max_rows, start, stop, self.n_rows)
        spans = ((low, min(low + max_rows, last)) for low in range(first, last, max_rows))
        return (RowBlock(low, high, self._rows[low:high]) for low, high in spans)

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        return self._rows[check_indices(indices, self.n_rows)]

    def whole(self) -> Matrix:
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


class MemmapSource(ArraySource):
    """A memory map whose rows are read through the mapping, and handed out as copies."""

    in_memory = False

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[RowBlock]:
        views = super().blocks(max_rows, start, stop)
        return (RowBlock(view.start, view.stop, np.array(view.rows, order="C")) for view in views)

    def whole(self) -> Matrix:
        return np.array(self._rows, order="C")


class SomeRows(ABC):
    """What is common to both: all that is not said here is as in the other source."""

    def __init__(self, source: Source, n_rows: int) -> None:
        self.source = source
        self.n_rows = n_rows
        self.n_columns = source.n_columns
        self.name = source.name
        self.dtype: np.dtype[Any] = source.dtype
        self.is_sparse = source.is_sparse
        self.in_memory = source.in_memory

    @abstractmethod
    def numbers_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """The numbers of these rows in the other source."""

    @abstractmethod
    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[RowBlock]:
        """Give rows `start` to `stop` in order, `max_rows` at a time."""

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        """Return these rows in this order."""
        return self.source.take(self.numbers_of(check_indices(indices, self.n_rows)))

    def whole(self) -> Matrix:
        """Return every row in memory."""
        return next(self.blocks(max(1, self.n_rows))).rows


class RowRange(SomeRows):
    """Rows `start` to `stop` (exclusive) of another source, counted from 0."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        super().__init__(source, stop - start)
        self._start, self.seeks = start, getattr(source, "seeks", False)

    @property
    def segment_starts(self) -> NDArray[np.intp]:
        """See `StreamedSource`."""
        starts = starts_of_segments(self.source) - self._start
        return np.append(0, starts[(starts > 0) & (starts < self.n_rows)])

    def numbers_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        return rows + self._start

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[RowBlock]:
        first, last = check_span(max_rows, start, stop, self.n_rows)
        for block in self.source.blocks(max_rows, self._start + first, self._start + last):
            yield RowBlock(block.start - self._start, block.stop - self._start, block.rows)


class ChosenRows(SomeRows):
    """The rows with these ascending numbers of another source of dense rows; a number may be repeated."""

    def __init__(self, source: Source, numbers: NDArray[np.intp]) -> None:
        super().__init__(source, len(numbers))
        self._numbers = numbers

    def numbers_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        return self._numbers[rows]

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[RowBlock]:
        """What lies between the rows is read, too."""
        first, last = check_span(max_rows, start, stop, self.n_rows)
        return regroup(self._pieces(max_rows, first, last), max_rows, first, last, self.dtype)

    def _pieces(self, max_rows: int, first: int, last: int) -> Iterator[NDArray[Any]]:
        wanted = self._numbers[first:last]
        if not len(wanted):
            return
        for block in self.source.blocks(max_rows, int(wanted[0]), int(wanted[-1]) + 1):
            here = slice(*np.searchsorted(wanted, [block.start, block.stop]))
            yield np.asarray(block.rows)[wanted[here] - block.start]


def choose_rows(rows: Any, numbers: NDArray[np.intp] | None) -> Any:
    """Those rows of a matrix or of a source; all where there are no numbers."""
    if numbers is None:
        return rows
    return ChosenRows(rows, numbers) if isinstance(rows, Source) else rows[numbers]


def check_rows(rows: Matrix, source: Source, numbers: NDArray[np.intp]) -> None:
    """Refuse NaN and infinity in rows that a source has given, by the number that a row has in its file."""
    while isinstance(source, SomeRows):
        numbers = source.numbers_of(numbers)
        source = source.source
    check_finite(rows, source.name, numbers)


def concatenate(parts: Sequence[Source], name: str) -> Source:
    """Several sources one below the other; one alone stays what it is, and sparse ones are joined in memory."""
    head = parts[0]
    for part in parts[1:]:
        if part.n_columns != head.n_columns:
            raise DataError(
                f"{part.name}: has {part.n_columns} columns, but {head.name} has {head.n_columns}; "
                "all parts need the same columns"
            )
        if getattr(part, "column_names", None) != getattr(head, "column_names", None):
            raise DataError(
                f"{part.name}: its columns are not those of {head.name}, or in another order; "
                "all parts need the same columns"
            )
        if part.is_sparse != head.is_sparse:
            raise DataError(
                f"{part.name}: is {'sparse' if part.is_sparse else 'dense'}, but {head.name} is not; "
                "make all parts dense or all parts sparse"
            )
    if len(parts) == 1:
        return head
    if head.is_sparse:
        matrices: list[Any] = [part.whole() for part in parts]
        return CSRSource(sparse.vstack(matrices, format="csr"), name)
    return ConcatenatedSource(parts, name)


def checked_csr(matrix: Any, name: str = "X") -> Any:
    """The matrix as CSR with sorted rows and duplicates summed; the caller's one stays as it is.

    Its arrays are used where they lie if they are in that form. Costs one look at the indices.
    """
    check_table(matrix.shape, matrix.dtype, name)
    n_rows, n_columns = (int(size) for size in matrix.shape)
    try:
        if matrix.format == "coo":
            _check_range(matrix.row, n_rows)
            _check_range(matrix.col, n_columns)
        elif matrix.format in ("csc", "bsr"):
            matrix.check_format(full_check=True)
        if matrix.format != "csr":
            check_fits(8 * n_rows, f"{name}: a CSR matrix of {n_rows} rows", "remove its empty rows")
        rows = _canonical(matrix.tocsr(), n_columns)
    except DataError:
        raise
    except (ValueError, IndexError, AttributeError) as error:
        raise DataError(f"{name}: is not a valid sparse matrix ({error}); make it again from its entries") from error
    return rows


def _canonical(matrix: Any, n_columns: int) -> Any:
    """A CSR matrix with checked and canonical rows.

    The flags that SciPy keeps may be out of date, as arrays can be changed behind them; a new object has none.
    """
    _check_pointers(matrix)
    rows = type(matrix)((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    _check_range(rows.indices, n_columns)
    if not rows.has_canonical_format:
        # a copy, sorted by columns and back where that is faster than to sort every row
        rows = rows.tocsc().tocsr() if rows.shape[1] <= rows.nnz else rows.copy()
        rows.sum_duplicates()  # in place; sorts rows that are not
    return rows


def _check_pointers(matrix: Any) -> None:
    """The row pointers must ascend from 0 to the number of entries, or rows would lie outside of the arrays."""
    data, indices, pointers = matrix.data, matrix.indices, matrix.indptr
    for what, array in (("data", data), ("indices", indices), ("indptr", pointers)):
        if array.ndim != 1 or (what != "data" and array.dtype.kind not in "iu"):
            raise ValueError(f"{what} is a {array.ndim}-D array of {array.dtype}")
    if len(pointers) != matrix.shape[0] + 1 or pointers[0] != 0 or (pointers[1:] < pointers[:-1]).any():
        raise ValueError("its row pointers (indptr) do not ascend from 0, one for each row and one more")
    if not pointers[-1] <= len(indices) == len(data):
        raise ValueError(f"{len(data)} values and {len(indices)} indices where the row pointers say {pointers[-1]}")


def _check_range(indices: Any, size: int) -> None:
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise ValueError(f"indices between {indices.min()} and {indices.max()} where only 0 to {size - 1} exist")
