"""Parquet and feather files: numeric columns, or one column of equally long lists.

Row groups, or record batches, are read one at a time. Tables in memory come by Arrow's columns as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import Column, choose_numbers
from globular.data.streamed import FileVersion, StreamedSource
from globular.errors import DataError, import_extra

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # how pandas stores the index of a frame


def describe_schema(schema: Any) -> list[Column]:
    """What every column of a schema holds."""
    return [Column(field.name, _type_in_words(field.type), _kind(field.type)) for field in schema]


def _type_in_words(kind: Any) -> str:
    if _kind(kind) != "lists":
        return str(kind)
    length = f"of {kind.list_size} " if hasattr(kind, "list_size") else "of "
    return f"list {length}{kind.value_type}"


class ArrowRows:
    """Numeric columns, or one column of equally long lists, as rows of one array.

    `first_list` gives the first list of a column, where the type does not say how long its lists are.
    """

    def __init__(
        self, file: str, schema: Any, columns: Sequence[str] | None,
        first_list: Callable[[str], Any | None] = lambda name: None,
    ) -> None:  # fmt: skip
        self.file = file
        chosen = choose_numbers(file, describe_schema(schema), columns)
        self.names = tuple(column.name for column in chosen)
        self.are_lists = len(chosen) == 1 and chosen[0].kind == "lists"
        types = [schema.field(name).type for name in self.names]
        self.n_columns = self._list_length(types[0], first_list) if self.are_lists else len(types)
        types = [types[0].value_type] if self.are_lists else types
        self.dtype = np.result_type(*(kind.to_pandas_dtype() for kind in types)) if types else np.dtype(np.float64)

    def _list_length(self, kind: Any, first_list: Callable[[str], Any | None]) -> int:
        """Length of the lists: part of the type, or that of the first row."""
        from pyarrow import types

        if types.is_fixed_size_list(kind):
            return int(kind.list_size)
        first = first_list(self.names[0])
        if first is None:
            raise DataError(f"{self.file}: has no rows, so the length of its lists is unknown; remove the file")
        if not first.is_valid or len(first) == 0:
            raise DataError(f"{self.file}: the list in the first row is missing or empty; drop such rows")
        return len(first)

    def to_array(self, batch: Any, first: int | None = None) -> NDArray[Any]:
        """One array from the columns of a record batch; with the number of its `first` row errors tell theirs."""
        if self.are_lists:
            return self._lists_to_array(batch.column(self.names[0]), first)
        rows = np.empty((batch.num_rows, self.n_columns), self.dtype)
        for position, name in enumerate(self.names):
            column = batch.column(name)
            self._refuse_missing(column, name, first)
            rows[:, position] = column.to_numpy(zero_copy_only=False)
        return rows

    def _lists_to_array(self, lists: Any, first: int | None) -> NDArray[Any]:
        """One array from a column of lists, which must all be equally long."""
        name = self.names[0]
        self._refuse_missing(lists, name, first)
        values = lists.flatten()
        self._refuse_missing(values, name)
        # without nulls a column of fixed-size lists can only be right; the others say each list's length
        if hasattr(lists, "offsets"):
            lengths = np.diff(lists.offsets.to_numpy())
            if len(wrong := np.flatnonzero(lengths != self.n_columns)):
                raise DataError(
                    f"{self.file}: column {name!r} has lists of length {self.n_columns} and {lengths[wrong[0]]}"
                    f"{_row(first, wrong[0])}; all rows need the same length"
                )
        return values.to_numpy(zero_copy_only=False).reshape(len(lists), self.n_columns)

    def _refuse_missing(self, column: Any, name: str, first: int | None = None) -> None:
        if column.null_count:
            where = _row(first, column.is_null().to_pylist().index(True))
            raise DataError(f"{self.file}: column {name!r} has missing values{where}; fill them in or drop these rows")


def _row(first: int | None, position: int) -> str:
    return "" if first is None else f" (row {first + position + 1})"


def _kind(kind: Any) -> Any:
    from pyarrow import types

    if _is_number(kind):
        return "numbers"
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return "lists" if is_list and _is_number(kind.value_type) else "other"


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


class ArrowSource(StreamedSource):
    """A table in a file; a segment per row group or record batch, of which at most one is held in memory."""

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self._path = path
        version = FileVersion.of(path)
        with version.reading(), open_arrow(path) as file:
            rows = segment_rows(file)
            filled = next((segment for segment, n_rows in enumerate(rows) if n_rows), None)
            self._rows = ArrowRows(
                str(path), _schema(file), columns,
                lambda name: None if filled is None else next(batches_of(file, filled, [name], 1)).column(name)[0],
            )  # fmt: skip
        self.column_names = self._rows.names
        super().__init__(str(path), rows, self._rows.n_columns, self._rows.dtype, version)

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        with open_arrow(self._path) as file:
            seen = 0  # rows of this segment so far
            for batch in batches_of(file, segment, list(self.column_names), min(max_rows, self._rows_per_piece())):
                low, high = max(first - seen, 0), min(last - seen, batch.num_rows)
                if low < high:
                    yield self._rows.to_array(batch.slice(low, high - low))
                seen += batch.num_rows
                if seen >= last:
                    return
        raise DataError(f"{self._path}: has fewer rows than its footer declares; copy or write it again")


def describe_arrow(path: Path) -> tuple[int, list[Column]]:
    """The number of rows and the columns, whatever they hold."""
    with open_arrow(path) as file:
        return sum(segment_rows(file)), describe_schema(_schema(file))


@contextmanager
def open_arrow(path: Path) -> Iterator[Any]:
    """Open a parquet file or one of record batches; one that cannot be read is named, at its ends or further in."""
    arrow = import_extra("pyarrow", "pyarrow", "io", f"reading {path}")
    is_parquet = path.suffix.lower() == ".parquet"
    module = import_extra(f"pyarrow.{'parquet' if is_parquet else 'ipc'}", "pyarrow", "io", f"reading {path}")
    try:
        if is_parquet:
            with module.ParquetFile(path, page_checksum_verification=True) as file:
                yield file
        else:
            with arrow.OSFile(str(path), "rb") as content, module.open_file(content) as file:
                yield file
    except (FileNotFoundError, PermissionError):
        raise
    except (arrow.ArrowException, OSError) as error:
        kind = "a parquet file" if is_parquet else "a feather file of version 2"
        raise DataError(
            f"{path}: is truncated, corrupt or not {kind} ({first_line(error)}); copy or write it again"
        ) from error


def segment_rows(file: Any) -> list[int]:
    """The number of rows of every row group or record batch of an open file."""
    if hasattr(file, "num_row_groups"):
        return [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    return [file.get_batch(number).num_rows for number in range(file.num_record_batches)]


def batches_of(file: Any, segment: int, columns: list[str] | None = None, max_rows: int = 1 << 16) -> Iterator[Any]:
    """A row group of an open file, `max_rows` rows at a time, or a record batch as it is."""
    if hasattr(file, "num_row_groups"):
        yield from file.iter_batches(batch_size=max_rows, row_groups=[segment], columns=columns)
    else:
        yield file.get_batch(segment)


def _schema(file: Any) -> Any:
    """The columns of a table without those in which pandas keeps the index of a frame."""
    from pyarrow import schema

    fields = file.schema_arrow if hasattr(file, "num_row_groups") else file.schema
    return schema([field for field in fields if not _PANDAS_INDEX.fullmatch(field.name)])


def first_line(error: BaseException) -> str:
    """What an error of Arrow says first."""
    return (str(error).splitlines() or [type(error).__name__])[0]
