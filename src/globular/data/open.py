"""The door for data: what a user hands over as X is told here, once, and opened where it is not rows in memory.

Tables and tensors of other libraries are told by their names, since none of them is imported here. What NumPy or
scikit-learn can read as it is stays what it is. The rest becomes an array: a column of lists (embeddings, mostly), a
tensor in its own type (bfloat16 as float32), a lazy frame, the matrix of an AnnData.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.data.arrow_files import ArrowRows
from globular.data.binary_files import open_memmap
from globular.data.blocks import Column, Source, check_not_empty, choose_columns, choose_numbers
from globular.data.formats import expanded, open_path, parts_of
from globular.data.sources import ArraySource, CSRSource, concatenate
from globular.errors import DataError

UNEVEN = "X: the rows are not equally long, or hold lists; give every row the same number of values"
_KNOWN = "an array, a data frame, a scipy sparse matrix, a list of lists, a path or a Source"


@dataclass(frozen=True, slots=True)
class Files:
    """Files one below the other, by their names; a folder stands for the files in it."""

    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None

    def open(self) -> Source:
        """One source of all rows."""
        sources = [open_path(path, self.columns) for path in self.paths]
        return concatenate(sources, f"{sources[0].name} …")

    def names(self) -> Iterator[str]:
        """The full name of every file."""
        for path in self.paths:
            yield from map(os.path.abspath, parts_of(path))


@dataclass(frozen=True, slots=True)
class GivenRows:
    """What a user hands over as X."""

    kind: Literal["collection", "files", "source", "rows"]
    """A collection of Dask, several files (for workers, if there are any), one file or other source, rows in memory."""
    value: Any
    """A Dask array or data frame, `Files`, a `Source`, or X, if need be as an array."""

    def open(self) -> Source | None:
        """A source of the rows, where they do not lie in memory."""
        if self.kind == "files":
            return self.value.open()
        return self.value if self.kind == "source" else None


def tell(X: Any) -> GivenRows:
    """Say what X is. A file is opened for that, but its rows are not read."""
    if type(X) is np.ndarray:  # looking for the members of a source takes longer than a small pass
        return GivenRows("rows", X)
    if isinstance(X, np.ma.MaskedArray):
        if np.ma.is_masked(X):
            raise TypeError("X is a masked array, and its mask would be lost; pass X.filled(...) or drop the rows")
        return GivenRows("rows", np.asarray(X.data))
    if is_collection(X):
        return GivenRows("collection", X)
    if isinstance(X, Files):
        return GivenRows("files", X)
    if isinstance(X, list | tuple) and X and all(isinstance(item, str | os.PathLike) for item in X):
        return GivenRows("files", Files(tuple(map(os.fspath, X))))
    if isinstance(X, str | os.PathLike):
        has_parts = expanded(X).is_dir() or len(parts_of(X)) > 1
        return GivenRows("files", Files((os.fspath(X),))) if has_parts else GivenRows("source", open_path(X))
    if isinstance(X, np.memmap) and X.filename is not None:  # a copy of a memmap has no file behind it
        return GivenRows("source", open_memmap(X))
    if isinstance(X, Source) and not isinstance(X, np.ndarray):
        return GivenRows("source", X)
    rows = rows_of(X)
    return GivenRows("source" if isinstance(rows, ArraySource) else "rows", rows)


def is_collection(X: Any) -> bool:
    """Whether X is a Dask array or data frame; Dask is not imported to find out."""
    return hasattr(X, "__dask_graph__") and hasattr(X, "to_delayed")


def as_source(X: Any) -> Source:
    """Make a source, of at least one row and one column, of whatever a user passes as data; arrays are not copied.

    >>> source = as_source(np.arange(6, dtype=np.uint8).reshape(3, 2))
    >>> [block.rows.tolist() for block in source.blocks(max_rows=2)]
    [[[0, 1], [2, 3]], [[4, 5]]]
    """
    given = tell(X)
    opened = given.open()
    source = _table(given.value) if opened is None else opened
    check_not_empty(source.n_rows, source.n_columns, source.name)
    return source


def _table(X: Any) -> Source:
    """A source of rows in memory, by their type."""
    if isinstance(X, np.ndarray):
        return ArraySource(X)
    if sparse.issparse(X):
        return CSRSource(X)
    if isinstance(X, list | tuple):
        try:
            rows = np.asarray(X)
        except ValueError as error:
            raise DataError(UNEVEN) from error
        return ArraySource(rows)
    if all(hasattr(X, attribute) for attribute in ("dtypes", "columns", "to_numpy", "iloc")):
        if message := are_not_numbers(X):
            raise DataError(message)
        names, values = tuple(X.columns), X.to_numpy()
        if values.dtype.kind not in "biuf":  # nullable or mixed columns; a missing value becomes NaN
            values = X.to_numpy(dtype=np.float64, na_value=np.nan)
        return ArraySource(values, column_names=names if all(isinstance(name, str) for name in names) else None)
    raise TypeError(
        f"X must be an array, a memmap, a scipy sparse matrix, a pandas DataFrame, a list of lists, a path "
        f"or a Source, got {type(X).__module__}.{type(X).__qualname__}; try numpy.asarray(X)"
    )


def rows_of(X: Any) -> Any:
    """X itself, or the rows that it holds: an array, or a source with the names of the columns."""
    library = _library(X)
    if isinstance(X, np.ndarray | list | tuple) or sparse.issparse(X):
        return X
    if X is None or isinstance(X, Mapping | Iterator):
        raise TypeError(f"X must be {_KNOWN}, got {type(X).__name__}")
    if library == "pyarrow" and hasattr(X, "schema"):
        return _from_arrow(X)
    if library == "anndata":
        return rows_of(X.X)
    if library == "polars" and hasattr(X, "collect"):
        return rows_of(X.collect())
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        return _from_frame(X)
    if library in ("pandas", "polars"):
        return _from_series(X)
    if library == "torch" or hasattr(X, "__array_namespace__") or hasattr(X, "__dlpack__"):
        X = X.float() if str(getattr(X, "dtype", "")) == "torch.bfloat16" else X
        rows = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X)
        return rows.astype(np.float32) if str(rows.dtype) == "bfloat16" else rows
    return X


def _library(X: Any) -> str:
    return type(X).__module__.partition(".")[0]


def columns_of(frame: Any) -> list[Column]:
    """What every column of a frame of pandas or polars holds."""
    positions = range(len(frame.columns))
    names, dtypes = list(frame.columns), list(frame.dtypes)
    return [Column(str(names[i]), str(dtypes[i]), _kind(dtypes[i], frame, i)) for i in positions]


def are_not_numbers(X: Any) -> str:
    """What to say of the columns of a data frame that are not numbers; nothing where there are none, or no types."""
    if not (hasattr(X, "columns") and hasattr(X, "dtypes")):
        return ""
    words = [repr(column.name) for column in columns_of(X) if column.kind != "numbers"]
    if not words:
        return ""
    remedy = 'X.select_dtypes("number")' if hasattr(X, "select_dtypes") else "X.select(polars.selectors.numeric())"
    return f"X: columns that are not numbers: {', '.join(words)}; drop or encode them first, e.g. {remedy}"


def _kind(dtype: Any, frame: Any, position: int) -> Any:
    if hasattr(dtype, "is_numeric"):  # of polars
        is_number, is_list = dtype.is_numeric() or str(dtype) == "Boolean", str(dtype).startswith(("List", "Array"))
    else:
        is_number = getattr(dtype, "kind", "f") in "biuf"
        in_memory = _library(frame) == "pandas"
        is_list = not is_number and in_memory and _is_list(_first(frame.iloc[:, position]))
    return "numbers" if is_number else "lists" if is_list else "other"


def _first(series: Any) -> Any:
    return next(iter(series), None)


def _is_list(value: Any) -> bool:
    """Whether a value is a row of numbers."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "biuf"
    return isinstance(value, list | tuple) and all(isinstance(item, int | float | np.number) for item in value)


def _from_frame(frame: Any) -> Any:
    """A frame of numbers, which of pandas stays as it is; one column of lists is its lists."""
    kinds = columns_of(frame)
    choose_columns("X", [column.name for column in kinds], None)  # refuses two of one name
    if all(column.kind == "numbers" for column in kinds) and _library(frame) == "polars":
        return ArraySource(frame.to_numpy(), column_names=tuple(frame.columns))  # scikit-learn would take float64
    if all(column.kind != "lists" for column in kinds):
        return frame
    (chosen,) = choose_numbers("X", kinds, None)
    series = frame[chosen.name] if hasattr(frame, "iloc") else frame.get_column(chosen.name)
    return _stacked(series, f"column {chosen.name!r}")


def _from_series(series: Any) -> NDArray[Any]:
    """A column of lists; one of numbers could be rows or a single row."""
    if not _is_list(_first(series)) and not hasattr(_first(series), "to_list"):
        raise DataError(
            f"X: Expected a 2-dimensional container but got {type(series).__module__.partition('.')[0]} "
            f"{type(series).__name__}; pass X.to_frame() if each value is a row"
        )
    return _stacked(series, "X")


def _stacked(series: Any, name: str) -> NDArray[Any]:
    """Lists of equal length, one below the other."""
    if str(series.dtype).endswith("[pyarrow]"):
        import pyarrow

        return _from_arrow(pyarrow.table({name: pyarrow.array(series)}))
    lists = [value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value) for value in series]
    lengths = {value.shape for value in lists}
    if len(lengths) > 1 or lists[0].ndim != 1:
        raise DataError(f"X: the lists of {name} are not equally long, or some are missing; give all the same length")
    return np.stack(lists)


def _from_arrow(table: Any) -> Any:
    """A table or record batch of Arrow; a column of lists has no name for every number."""
    import pyarrow

    whole = pyarrow.table(table) if isinstance(table, pyarrow.RecordBatch) else table
    rows = ArrowRows("X", whole.schema, None, lambda name: whole.column(name)[0] if whole.num_rows else None)
    pieces = [rows.to_array(batch) for batch in whole.to_batches()]
    values = np.concatenate([np.empty((0, rows.n_columns), rows.dtype), *pieces])
    return values if rows.are_lists else ArraySource(values, column_names=rows.names)


def counting_column(names: Any, rows: Any) -> str | None:
    """The name of a column that numbers the rows: called id or index, and distinct increasing integers."""
    for position, name in enumerate(names):
        if str(name).strip().lower() in ("id", "index", "idx", "row", "row_id", "rowid", "unnamed: 0"):
            values = np.asarray(rows[:, position])
            if len(values) > 2 and (values == np.floor(values)).all() and (np.diff(values) > 0).all():
                return str(name)
    return None
