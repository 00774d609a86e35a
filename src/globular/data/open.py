"""The door for data: what a user hands over as X is told here, once, and opened where it is not rows in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.data.blocks import Source, check_not_empty
from globular.data.formats import expanded, open_path, parts_of
from globular.data.frames import UNEVEN, are_not_numbers, rows_of
from globular.data.sources import ArraySource, CSRSource, concatenate, open_memmap
from globular.errors import DataError


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
class Given:
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


def tell(X: Any) -> Given:
    """Say what X is. A file is opened for that, but its rows are not read."""
    if type(X) is np.ndarray:  # looking for the members of a source takes longer than a small pass
        return Given("rows", X)
    if isinstance(X, np.ma.MaskedArray):
        if np.ma.is_masked(X):
            raise TypeError("X is a masked array, and its mask would be lost; pass X.filled(...) or drop the rows")
        return Given("rows", np.asarray(X.data))
    if is_collection(X):
        return Given("collection", X)
    if isinstance(X, Files):
        return Given("files", X)
    if isinstance(X, list | tuple) and X and all(isinstance(item, str | os.PathLike) for item in X):
        return Given("files", Files(tuple(map(os.fspath, X))))
    if isinstance(X, str | os.PathLike):
        has_parts = expanded(X).is_dir() or len(parts_of(X)) > 1
        return Given("files", Files((os.fspath(X),))) if has_parts else Given("source", open_path(X))
    if isinstance(X, np.memmap) and X.filename is not None:  # a copy of a memmap has no file behind it
        return Given("source", open_memmap(X))
    if isinstance(X, Source) and not isinstance(X, np.ndarray):
        return Given("source", X)
    rows = rows_of(X)
    return Given("source" if isinstance(rows, ArraySource) else "rows", rows)


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
        names = tuple(X.columns)
        return ArraySource(_from_frame(X), column_names=names if all(isinstance(name, str) for name in names) else None)
    raise TypeError(
        f"X must be an array, a memmap, a scipy sparse matrix, a pandas DataFrame, a list of lists, a path "
        f"or a Source, got {type(X).__module__}.{type(X).__qualname__}; try numpy.asarray(X)"
    )


def _from_frame(frame: Any) -> NDArray[Any]:
    """Turn a pandas DataFrame into an array; a column that is not numeric is named."""
    if message := are_not_numbers(frame):
        raise DataError(message)
    values: NDArray[Any] = frame.to_numpy()
    # nullable and mixed columns come out as objects; a missing value becomes NaN, which fit then reports
    return values if values.dtype.kind in "biuf" else frame.to_numpy(dtype=np.float64, na_value=np.nan)
