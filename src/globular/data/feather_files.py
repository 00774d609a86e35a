"""Feather files, which are Arrow's record batches one after the other (.feather of version 2, .arrow)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from globular.data.arrow_rows import ArrowRows, describe_schema
from globular.data.columns import Column
from globular.data.parquet_files import first_line, without_index
from globular.data.streamed import StreamedSource
from globular.data.versions import FileVersion
from globular.errors import DataError, MissingExtraError


class FeatherSource(StreamedSource):
    """A .feather file; one segment per record batch, of which one is held in memory."""

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self._path = path
        version = FileVersion.of(path)
        with version.reading(), open_feather(path) as file:
            segment_rows = [file.get_batch(batch).num_rows for batch in range(file.num_record_batches)]
            filled = next((batch for batch, n_rows in enumerate(segment_rows) if n_rows), None)
            self._rows = ArrowRows(
                str(path),
                without_index(file.schema),
                columns,
                lambda name: None if filled is None else file.get_batch(filled).column(name)[0],
            )
        self.column_names = self._rows.names
        super().__init__(str(path), segment_rows, self._rows.n_columns, self._rows.dtype, version)

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        with open_feather(self._path) as file:
            yield self._rows.to_array(file.get_batch(segment).slice(first, last - first))


def describe_feather(path: Path) -> tuple[int, list[Column]]:
    """The number of rows and the columns, whatever they hold."""
    with open_feather(path) as file:
        n_rows = sum(file.get_batch(batch).num_rows for batch in range(file.num_record_batches))
        return n_rows, describe_schema(without_index(file.schema))


@contextmanager
def open_feather(path: Path) -> Iterator[Any]:
    """Open a file of record batches; one that cannot be read is named, at the head or further down."""
    try:
        from pyarrow import ArrowException, OSFile, ipc
    except ImportError as error:
        raise MissingExtraError("pyarrow", "io", f"reading {path}") from error
    try:
        with OSFile(str(path), "rb") as file, ipc.open_file(file) as reader:
            yield reader
    except (ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise DataError(
            f"{path}: is truncated, corrupt or not a feather file of version 2 ({first_line(error)}); copy or write "
            "it again"
        ) from error
