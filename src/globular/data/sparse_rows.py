"""Sparse matrices as they come in: checked before any compiled code follows their indices.

SciPy takes index arrays on trust, and so do its conversions and our kernels: an index out of range would read and write
the memory of others. What is found good is a CSR matrix of sorted rows, in which no column occurs twice.
"""

from __future__ import annotations

from typing import Any

from globular.data.blocks import check_table
from globular.errors import DataError
from globular.machine import check_fits


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
        rows = _sorted(rows)
        rows.sum_duplicates()  # in place
    return rows


def _sorted(rows: Any) -> Any:
    """A copy with ascending column numbers: by columns and back, which is faster than to sort every row."""
    if rows.shape[1] <= rows.nnz:
        return rows.tocsc().tocsr()
    rows = rows.copy()
    rows.sort_indices()
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
