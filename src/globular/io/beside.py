"""The columns of a table as they stand in its files, so that results can be written beside them.

They are handed out in the order of the rows, some at a time: text as lines, parquet and feather as Arrow's tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from globular.data.feather_files import open_feather
from globular.data.formats import parts_of, suffix_of
from globular.data.parquet_files import open_parquet
from globular.data.text_files import read_header
from globular.data.text_lines import TextFile, scan
from globular.errors import DataError


class Lines:
    """The lines of text files one below the other; blank ones are no rows."""

    suffix = ".csv"

    def __init__(self, paths: Sequence[Path]) -> None:
        self._texts = [TextFile(path) for path in paths]
        self._headers = [read_header(text) for text in self._texts]
        self.delimiter = self._headers[0].delimiter.encode()
        if any(header.delimiter != self._headers[0].delimiter for header in self._headers):
            raise DataError(f"{paths[0]}: other files have other signs between their fields; write them alike")
        self.names = self._headers[0].names
        self._lines = self._all_lines()

    @property
    def head(self) -> bytes | None:
        """The line of names, where there is one."""
        header = self._headers[0]
        if header.names is None:
            return None
        with self._texts[0].open() as file:
            return file.read(header.data_start).removeprefix(b"\xef\xbb\xbf").strip()

    def _all_lines(self) -> Iterator[bytes]:
        for text, header in zip(self._texts, self._headers, strict=True):
            for chunk in scan(text, header.data_start):
                yield from (line for line in chunk.read(text).splitlines() if line)

    def take(self, n_rows: int) -> list[bytes]:
        """The next lines."""
        return list(islice(self._lines, n_rows))


class Batches:
    """The record batches of parquet or feather files one below the other."""

    suffix = ".parquet"

    def __init__(self, paths: Sequence[Path]) -> None:
        self._batches = self._all_batches(paths)
        self._held: Any = next(self._batches)
        self.names = tuple(self._held.schema.names)

    def _all_batches(self, paths: Sequence[Path]) -> Iterator[Any]:
        import pyarrow

        for path in paths:
            if suffix_of(path) == ".parquet":
                with open_parquet(path) as file:
                    yield from (pyarrow.table(batch) for batch in file.iter_batches())
            else:
                with open_feather(path) as file:
                    for number in range(file.num_record_batches):
                        yield pyarrow.table(file.get_batch(number))

    def take(self, n_rows: int) -> Any:
        """A table of the next rows."""
        import pyarrow

        while self._held.num_rows < n_rows:
            self._held = pyarrow.concat_tables([self._held, next(self._batches)])
        taken, self._held = self._held.slice(0, n_rows), self._held.slice(n_rows)
        return taken


def open_beside(data: Sequence[str]) -> Lines | Batches:
    """The columns of files, all of one kind, with their names."""
    paths = [path for name in data for path in parts_of(name)]
    kinds = {Batches if suffix_of(path) in (".parquet", ".feather", ".arrow") else Lines for path in paths}
    known = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".feather", ".arrow")
    if len(kinds) > 1 or any(suffix_of(path) not in known for path in paths):
        raise DataError(f"{paths[0]}: columns are kept of text, or of parquet and feather files; leave that out")
    return kinds.pop()(paths)
