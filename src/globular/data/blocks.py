"""The contract between data and everything that reads it: a source hands out blocks of rows.

A *source* is a table of numbers, `n_rows` × `n_columns`, that may be larger than memory. It is read in two
ways only: in order, block by block (`blocks`), or by row number (`take`). Every pass over the data starts a
new `blocks()`, so a source can be read as often as one likes and always gives the same rows in the same
order. Blocks keep the type in which the values are stored (float16, uint8, ...): whoever computes converts.

Two promises make results independent of where the rows lie. Each block but the last has exactly `max_rows`
rows, whatever the row groups or parts of the files; and blocks are read-only by agreement, since they may be
views of a file. They need not be contiguous in memory.

Columns have names in some formats, and are chosen by them the same way for every one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.errors import DataError

Matrix: TypeAlias = NDArray[Any] | sparse.csr_matrix | sparse.csr_array


@dataclass(frozen=True)
class RowBlock:
    """Rows `start` to `stop` (exclusive) of a source, in order and in the source's own dtype."""

    start: int
    stop: int
    rows: Matrix


@runtime_checkable
class Source(Protocol):
    """Anything that hands out rows; see the head of the module for what it promises."""

    @property
    def name(self) -> str:
        """How messages call this source: a file name, or `X`."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    def n_columns(self) -> int:
        """Number of columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored values."""

    @property
    def is_sparse(self) -> bool:
        """Whether rows come as CSR rather than as an ndarray."""

    @property
    def in_memory(self) -> bool:
        """Whether the whole of it already lies in memory."""

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[RowBlock]:
        """Give rows `start` to `stop` in order, `max_rows` at a time (the last block may be shorter)."""

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        """Return the rows with these numbers, in this order; repeats are allowed."""

    def whole(self) -> Matrix:
        """Return every row in memory; no copy where the rows lie there already."""


@cache
def working_dtype(dtype: np.dtype) -> np.dtype:
    """float32 for whatever fits into it without loss, float64 for the rest: what passes convert rows to."""
    return np.dtype(np.float32) if np.can_cast(dtype, np.float32) else np.dtype(np.float64)


def check_span(max_rows: int, start: int, stop: int | None, n_rows: int) -> tuple[int, int]:
    """Validate the arguments of `blocks`; return `start` and `stop` with the default filled in."""
    if max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, got {max_rows}")
    end = n_rows if stop is None else stop
    if not 0 <= start <= end <= n_rows:
        raise ValueError(f"rows {start} to {end} do not lie within the {n_rows} rows of the source")
    return start, end


def check_indices(indices: NDArray[np.intp], n_rows: int) -> NDArray[np.intp]:
    """Validate the argument of `take`: a 1-D array of row numbers, none negative and none beyond the end."""
    rows = np.asarray(indices)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ValueError(f"indices must be a 1-D array of integers, got {rows.ndim}-D {rows.dtype}")
    if rows.size and (rows.min() < 0 or rows.max() >= n_rows):
        raise IndexError(f"indices must lie between 0 and {n_rows - 1}, got {rows.min()} to {rows.max()}")
    return rows.astype(np.intp, copy=False)


def check_table(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    """Refuse what is not a two-dimensional table of real numbers, with the remedy."""
    if dtype.kind == "c":
        raise DataError(f"{name}: Complex data not supported (dtype {dtype}); pass real and imaginary parts as columns")
    if dtype.kind not in "biuf":
        raise DataError(f"{name}: values of dtype {dtype} are not numbers; convert them first, e.g. .astype('float32')")
    if len(shape) != 2:
        remedy = ".reshape(-1, 1) if each value is a row" if len(shape) < 2 else ".reshape(len(X), -1)"
        raise DataError(
            f"{name}: Expected 2D array, got {len(shape)}D array instead (shape {shape}). "
            f"Reshape your data, e.g. {remedy}."
        )


def check_not_empty(n_rows: int, n_columns: int, name: str) -> None:
    """Refuse a table without rows or without columns."""
    for count, what in ((n_rows, "sample(s)"), (n_columns, "feature(s)")):
        if count == 0:
            raise DataError(f"{name}: 0 {what} (shape=({n_rows}, {n_columns})) while a minimum of 1 is required.")


def check_finite(rows: Matrix, name: str, numbers: NDArray[np.intp] | None = None) -> None:
    """Refuse NaN and infinity; where rows are dense and have numbers, the first bad row is named by its number."""
    values = rows if isinstance(rows, np.ndarray) else rows.data
    if values.dtype.kind != "f":
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum(dtype=np.float64)):  # one fast look; only another sum asks for a closer one
            return
    bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    if len(bad):
        where = "" if numbers is None or values.ndim == 1 else f" in row {numbers[bad[0]]}"
        raise DataError(f"{name}: NaN or infinity{where}; remove or fill such values first")


def regroup(
    pieces: Iterable[NDArray[Any]], max_rows: int, start: int, stop: int, dtype: np.dtype[Any]
) -> Iterator[RowBlock]:
    """Turn consecutive pieces of any length into blocks of `max_rows` rows, holding one block at a time.

    A piece that holds a whole block is passed on as a view; shorter ones are gathered in a fresh array.
    """
    position, filled = start, 0
    gathered: NDArray[Any] | None = None
    for piece in pieces:
        used = 0
        while used < len(piece):
            size = min(max_rows, stop - position)
            if gathered is None and len(piece) - used >= size:
                yield RowBlock(position, position + size, piece[used : used + size].astype(dtype, copy=False))
                position, used = position + size, used + size
                continue
            if gathered is None:
                gathered = np.empty((size, piece.shape[1]), dtype)
            n_new = min(size - filled, len(piece) - used)
            gathered[filled : filled + n_new] = piece[used : used + n_new]
            filled, used = filled + n_new, used + n_new
            if filled == size:
                yield RowBlock(position, position + size, gathered)
                position, filled, gathered = position + size, 0, None


_MOST_LISTED = 20
_MOST_PROPOSED = 6


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table as it was found."""

    name: str
    type: str
    """Its type in the words of the file."""
    kind: Literal["numbers", "lists", "other"]
    """Whether it holds numbers, lists of numbers, or what cannot be clustered."""


def choose_columns(file: str, names: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """Positions of `columns` among `names`, in the order asked for; all of them if none are asked for."""
    wanted = names if columns is None else columns
    counts, times = Counter(names), Counter(wanted)
    unknown = [column for column in wanted if column not in counts]
    if unknown or not (wanted or columns is None):
        listing = ", ".join(names[:_MOST_LISTED]) + (", ..." if len(names) > _MOST_LISTED else "")
        asked = f"no column {', '.join(map(repr, unknown))}" if unknown else "columns= names no column"
        raise DataError(f"{file}: {asked}; it has: {listing}")
    for column in wanted:
        if counts[column] > 1:
            remedy = "rename them" + (f", or choose others: {reading(file)}" if columns is None else "")
            raise DataError(f"{file}: {counts[column]} columns are called {column!r}; {remedy}")
        if times[column] > 1:
            raise DataError(f"{file}: column {column!r} is asked for twice; name it once")
    place = {name: position for position, name in enumerate(names)}
    return [place[column] for column in wanted]


def choose_numbers(file: str, table: Sequence[Column], columns: Sequence[str] | None) -> list[Column]:
    """The columns to read: those asked for, or all; they must be numbers, or one column of lists."""
    chosen = [table[i] for i in choose_columns(file, [column.name for column in table], columns)]
    numbers = [column.name for column in chosen if column.kind == "numbers"]
    lists = [column.name for column in chosen if column.kind == "lists"]
    if len(numbers) == len(chosen) or (len(lists) == 1 and len(chosen) == 1):
        return chosen
    usable = lists[:1] or numbers
    listing = ", ".join([*map(repr, usable[:_MOST_PROPOSED]), *(["..."] if len(usable) > _MOST_PROPOSED else [])])
    remedy = f"take the usable ones: {reading(file, f'[{listing}]')}" if usable else "it has no numeric column"
    other = [f"{column.name!r} ({column.type})" for column in chosen if column.kind == "other"]
    if other:
        those = f"column {other[0]} does not" if len(other) == 1 else f"columns {', '.join(other[:5])} do not"
        raise DataError(f"{file}: {those} hold numbers; {remedy}")
    raise DataError(
        f"{file}: column {lists[0]!r} holds lists and {len(chosen) - 1} other columns stand beside it; {remedy}"
    )


def reading(file: str, names: str = "[...]") -> str:
    """How to take some columns of a file, or of a data frame; the command says ``--columns``."""
    return f"X[{names}]" if file == "X" else f"globular.io.open_source(path, columns={names})"


def column_names(source: Source) -> list[str] | None:
    """A name for every column, if the source knows them; a column of lists has one name for many."""
    names = getattr(source, "column_names", None)
    return list(names) if names is not None and len(names) == source.n_columns else None


def check_columns(source: Source, n_columns: int, names: Sequence[str] | None) -> None:
    """Refuse a table without the columns of a fit, or with the same in another order, as far as names tell."""
    own = column_names(source)
    if own is not None and names is not None and own != list(names):
        listing = [str(name) for name in names] if len(names) <= _MOST_LISTED else "[...]"
        chosen = reading(source.name, str(listing))
        raise DataError(f"{source.name}: other columns than those of the fit, or in another order; choose {chosen}")
    if source.n_columns != n_columns:
        raise DataError(
            f"{source.name} has {source.n_columns} columns, the model was fitted on {n_columns}; choose "
            f"{reading(source.name)}"
        )
