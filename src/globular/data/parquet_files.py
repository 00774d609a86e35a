"""Parquet files: numeric columns, or one column of equally long lists; row groups are read one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from globular.data.arrow_rows import ArrowRows, describe_schema
from globular.data.columns import Column
from globular.data.streamed import StreamedSource
from globular.data.versions import FileVersion
from globular.errors import DataError, MissingExtraError

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # how pandas stores the index of a frame


class ParquetSource(StreamedSource):
    """A .parquet file; one segment per row group, of which at most one is held in memory."""

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self._path = path
        version = FileVersion.of(path)
        with version.reading(), open_parquet(path) as file:
            metadata = file.metadata
            self._rows = ArrowRows(
                str(path), without_index(file.schema_arrow), columns, lambda name: _first_value(file, path, name)
            )
            segment_rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.column_names = self._rows.names
        super().__init__(str(path), segment_rows, self._rows.n_columns, self._rows.dtype, version)

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        with open_parquet(self._path) as file:
            batches = file.iter_batches(batch_size=max_rows, row_groups=[segment], columns=list(self.column_names))
            seen = 0  # rows of this row group so far
            while seen < last:
                batch = _next_batch(batches, self._path)
                low, high = max(first - seen, 0), min(last - seen, batch.num_rows)
                if low < high:
                    yield self._rows.to_array(batch.slice(low, high - low))
                seen += batch.num_rows


def describe_parquet(path: Path) -> tuple[int, list[Column]]:
    """The number of rows and the columns, whatever they hold."""
    with open_parquet(path) as file:
        return file.metadata.num_rows, describe_schema(without_index(file.schema_arrow))


def open_parquet(path: Path) -> Any:
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
            f"{path}: is truncated, corrupt or not a parquet file ({first_line(error)}); copy or write it again"
        ) from error


def without_index(schema: Any) -> Any:
    """The columns of a table without those in which pandas keeps the index of a frame."""
    from pyarrow import schema as new_schema

    return new_schema([field for field in schema if not _PANDAS_INDEX.fullmatch(field.name)])


def _next_batch(batches: Iterator[Any], path: Path) -> Any:
    """The next record batch; damage inside the file shows only here."""
    from pyarrow import ArrowException

    try:
        return next(batches)
    except (ArrowException, OSError) as error:
        raise DataError(
            f"{path}: is corrupt or uses an unknown encoding ({first_line(error)}); copy or write it again"
        ) from error
    except StopIteration as error:
        raise DataError(f"{path}: has fewer rows than its footer declares; copy or write it again") from error


def first_line(error: BaseException) -> str:
    """What an error of Arrow says first."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _first_value(file: Any, path: Path, name: str) -> Any | None:
    if file.metadata.num_rows == 0:
        return None
    return _next_batch(file.iter_batches(batch_size=1, columns=[name]), path).column(name)[0]
