"""Parquet files: numeric columns, or one column of equally long lists; row groups are read one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.columns import choose_columns
from globular.data.streamed import StreamedSource
from globular.data.versions import FileVersion
from globular.errors import DataError, MissingExtraError

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # how pandas stores the index of a frame


class ParquetSource(StreamedSource):
    """A .parquet file; one segment per row group, of which at most one is held in memory."""

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self._path = path
        version = FileVersion.of(path)
        with version.reading(), _open(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
            self.column_names = _choose(path, schema, columns)
            types = [schema.field(name).type for name in self.column_names]
            self._list_column = len(types) == 1 and _is_list(types[0])
            n_columns = len(types)
            if self._list_column:
                n_columns = _list_length(file, path, schema.field(self.column_names[0]))
                types = [types[0].value_type]
        segment_rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        dtype = np.result_type(*(kind.to_pandas_dtype() for kind in types)) if types else np.dtype(np.float64)
        super().__init__(str(path), segment_rows, n_columns, dtype, version)

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        with _open(self._path) as file:
            batches = file.iter_batches(batch_size=max_rows, row_groups=[segment], columns=list(self.column_names))
            seen = 0  # rows of this row group so far
            while seen < last:
                batch = _next_batch(batches, self._path)
                low, high = max(first - seen, 0), min(last - seen, batch.num_rows)
                if low < high:
                    yield self._to_array(batch.slice(low, high - low))
                seen += batch.num_rows

    def _to_array(self, batch: Any) -> NDArray[Any]:
        """One array from the columns of a record batch."""
        if self._list_column:
            return self._lists_to_array(batch.column(self.column_names[0]))
        rows = np.empty((batch.num_rows, self.n_columns), self.dtype)
        for position, name in enumerate(self.column_names):
            column = batch.column(name)
            self._refuse_missing(column, name)
            rows[:, position] = column.to_numpy(zero_copy_only=False)
        return rows

    def _lists_to_array(self, lists: Any) -> NDArray[Any]:
        """One array from a column of lists, which must all be equally long."""
        name = self.column_names[0]
        self._refuse_missing(lists, name)
        values = lists.flatten()
        self._refuse_missing(values, name)
        # without nulls a column of fixed-size lists can only be right; the others say each list's length
        if hasattr(lists, "offsets"):
            lengths = np.diff(lists.offsets.to_numpy())
            if (lengths != self.n_columns).any():
                other = int(lengths[lengths != self.n_columns][0])
                raise DataError(
                    f"{self._path}: column {name!r} has lists of length {self.n_columns} and {other}; "
                    "all rows need the same length"
                )
        return values.to_numpy(zero_copy_only=False).reshape(len(lists), self.n_columns)

    def _refuse_missing(self, column: Any, name: str) -> None:
        if column.null_count:
            raise DataError(f"{self._path}: column {name!r} has missing values; fill them in or drop these rows")


def _open(path: Path) -> Any:
    """Open a parquet file; one that cannot be is named."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtraError("pyarrow", "io", f"reading {path}") from error
    try:
        return ParquetFile(path, page_checksum_verification=True)
    except (ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise DataError(
            f"{path}: is truncated, corrupt or not a parquet file ({_first_line(error)}); copy or write it again"
        ) from error


def _next_batch(batches: Iterator[Any], path: Path) -> Any:
    """The next record batch; damage inside the file shows only here."""
    from pyarrow import ArrowException

    try:
        return next(batches)
    except (ArrowException, OSError) as error:
        raise DataError(
            f"{path}: is corrupt or uses an unknown encoding ({_first_line(error)}); copy or write it again"
        ) from error
    except StopIteration as error:
        raise DataError(f"{path}: has fewer rows than its footer declares; copy or write it again") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _choose(path: Path, schema: Any, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the columns to read; refuse text and mixtures of lists and numbers with the remedy."""
    names = [name for name in schema.names if not _PANDAS_INDEX.fullmatch(name)]
    chosen = [names[position] for position in choose_columns(str(path), names, columns)]
    if len(set(chosen)) < len(chosen):
        raise DataError(f"{path}: several columns have the same name; rename them, or choose with columns=[...]")
    types = {name: schema.field(name).type for name in chosen}
    numeric = [name for name in chosen if _is_number(types[name])]
    lists = [name for name in chosen if _is_list(types[name])]
    if len(numeric) == len(chosen) or (len(lists) == 1 and len(chosen) == 1):
        return tuple(chosen)
    usable = lists[:1] or numeric
    remedy = f"read the usable ones with columns={_shorten(usable)}" if usable else "it has no numeric column"
    other = [name for name in chosen if name not in numeric and name not in lists]
    if other:
        what = ", ".join(f"{name!r} ({types[name]})" for name in other[:5])
        those = f"column {what} does not" if len(other) == 1 else f"columns {what} do not"
        raise DataError(f"{path}: {those} hold numbers; {remedy}")
    raise DataError(
        f"{path}: column {lists[0]!r} holds lists and {len(chosen) - 1} other columns stand beside it; {remedy}"
    )


def _shorten(names: list[str]) -> str:
    """A list of names as one would type it, cut where it gets long."""
    return "[" + ", ".join(map(repr, names[:6])) + (", ...]" if len(names) > 6 else "]")


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    """Whether this is a type of lists of numbers."""
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and _is_number(kind.value_type))


def _list_length(file: Any, path: Path, field: Any) -> int:
    """Length of the lists: part of the type, or that of the first row."""
    from pyarrow import types

    if types.is_fixed_size_list(field.type):
        return int(field.type.list_size)
    if file.metadata.num_rows == 0:
        raise DataError(f"{path}: has no rows, so the length of its lists is unknown; remove the file")
    first = _next_batch(file.iter_batches(batch_size=1, columns=[field.name]), path).column(field.name)[0]
    if not first.is_valid or len(first) == 0:
        raise DataError(f"{path}: the list in the first row is missing or empty; drop such rows")
    return len(first)
