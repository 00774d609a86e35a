"""Tables of numbers as text: .csv with commas, .tsv with tabs, with or without a line of column names.

Opening scans the file once for line ends, so that later any few megabytes of it can be parsed alone. NumPy's
own parser does the work: on one thread it is as fast as pyarrow's, and it needs no extra package.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from globular.data.columns import choose_columns
from globular.data.streamed import PIECE_BYTES, StreamedSource
from globular.data.versions import FileVersion
from globular.errors import DataError

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LONGEST_LINE = 1 << 26  # fields take more room than their text, and a line is the least that can be parsed
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})  # a value that is absent, not a name


@dataclass(frozen=True)
class _Header:
    """What the first line says: the names, if it holds names, and the byte at which the numbers begin."""

    names: tuple[str, ...] | None
    n_fields: int
    data_start: int


@dataclass(frozen=True)
class _Chunk:
    """A run of whole lines: its place in the file and its number of rows."""

    offset: int
    n_bytes: int
    n_rows: int


class TextSource(StreamedSource):
    """A .csv or .tsv file, parsed a few megabytes at a time into float64."""

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self._path = path
        version = FileVersion.of(path)
        self._delimiter = _DELIMITERS[path.suffix.lower()]
        with version.reading():
            self._header = _read_header(path, self._delimiter)
            self._used = self._choose(columns)
            self._chunks = _scan(path, self._header.data_start)
        names = self._header.names
        self.column_names = None if names is None else tuple(names[field] for field in self._used)
        segment_rows = [chunk.n_rows for chunk in self._chunks]
        super().__init__(str(path), segment_rows, len(self._used), np.dtype(np.float64), version)
        if self._chunks:
            with version.reading():
                self._parse(0)  # a column of text should fail now, not in the middle of a fit

    def _choose(self, columns: Sequence[str] | None) -> list[int]:
        """Positions of the fields to read."""
        names = self._header.names
        if names is None:
            if columns is not None:
                raise DataError(f"{self._path}: has no line of column names, so columns= cannot choose any")
            return list(range(self._header.n_fields))
        if columns is None and names[0] == "":
            raise DataError(
                f"{self._path}: the first column has no name; it looks like the row numbers that pandas and R "
                "write. Write the file without them (index=False), or name the columns to read with columns=[...]"
            )
        return choose_columns(str(self._path), names, columns)

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        yield self._parse(segment)[first:last]

    def _parse(self, segment: int) -> NDArray[np.float64]:
        """Read and parse one chunk."""
        chunk = self._chunks[segment]
        with self._path.open("rb") as file:
            file.seek(chunk.offset)
            text = file.read(chunk.n_bytes)
        # a line may only seem ragged, by a delimiter within quotes; loadtxt with usecols would mix up the columns
        delimiter, n_delimiters = self._delimiter.encode(), self._header.n_fields - 1
        if any(line.count(delimiter) != n_delimiters for line in text.splitlines() if line):
            self._find_fault(segment, text)
        try:
            rows = np.loadtxt(
                io.BytesIO(text),
                delimiter=self._delimiter,
                quotechar='"',
                comments=None,
                usecols=self._used,
                ndmin=2,
                encoding="latin-1",
            )
        except ValueError as error:
            self._find_fault(segment, text)
            raise DataError(f"{self._path}: cannot be parsed ({error})") from error
        if len(rows) != chunk.n_rows:
            raise DataError(
                f"{self._path}: has line breaks within quotes, which are not supported; write it without them"
            )
        return rows

    def _find_fault(self, segment: int, text: bytes) -> None:
        """Walk the rows of a chunk and raise at the first that is not as many numbers as there are fields."""
        # split first: as latin-1 text, letters of other encodings would count as line ends
        lines = [line.decode("latin-1") for line in text.splitlines()]
        number = int(self._bounds[segment])
        for fields in csv.reader(lines, delimiter=self._delimiter):
            if not fields:
                continue
            number += 1
            if len(fields) != self._header.n_fields:
                raise DataError(
                    f"{self._path}: data row {number} has {len(fields)} fields instead of "
                    f"{self._header.n_fields}; fields are separated by {self._delimiter!r}"
                )
            if any(not _is_number(fields[field]) for field in self._used):
                self._report_text(number, fields)

    def _report_text(self, number: int, fields: list[str]) -> NoReturn:
        """Name the columns of this row that are not numbers, and the remedy."""
        bad = [field for field in self._used if not _is_number(fields[field])]
        what = ", ".join(f"{self._title(field)} holds {fields[field]!r}" for field in bad)
        missing = all(fields[field].strip().lower() in _MISSING for field in bad)
        if missing:
            remedy = "fill in the missing values or drop these rows"
        elif len(fields) == 1 and re.search(r"[;\t|]", fields[0]):
            remedy = "fields are separated by ',' in a .csv and by tabs in a .tsv file; write it again that way"
        elif self._header.names is None:
            remedy = "remove what is not a number"
        else:
            remedy = "read only the numeric columns with columns=[...]"
        raise DataError(f"{self._path}: data row {number}: {what}, which is not a number; {remedy}")

    def _title(self, field: int) -> str:
        names = self._header.names
        return f"column {field + 1}" if names is None else f"column {names[field]!r}"


def _read_header(path: Path, delimiter: str) -> _Header:
    """Look at the first line that is not blank: names or numbers?"""
    with path.open("rb") as file:
        if b"\0" in file.read(4096):
            raise DataError(f"{path}: is not a text file in UTF-8 although its name says so; write it again")
        file.seek(0)
        start, line = 0, _next_line(file, path)
        while line and not line.strip():
            start, line = file.tell(), _next_line(file, path)
        if line.startswith(b"\xef\xbb\xbf"):  # byte order mark of Windows editors
            start, line = start + 3, line[3:]
        end, following = file.tell(), _next_line(file, path)
    if not line:
        raise DataError(f"{path}: has no rows; check that it was written completely")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = line.decode("latin-1")
    fields = next(csv.reader([text], delimiter=delimiter))
    if not _are_names(fields) and not _are_counted(fields, following):
        return _Header(None, len(fields), start)
    names = tuple(name.strip().removeprefix("#").strip() for name in fields)  # "# a,b" is numpy.savetxt's
    return _Header(names, len(fields), end)


def _next_line(file: BinaryIO, path: Path) -> bytes:
    """The rest of the present line; one that is absurdly long is refused before it fills the memory."""
    line = file.readline(_LONGEST_LINE)
    if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
        raise DataError(
            f"{path}: has a line of more than {_LONGEST_LINE >> 20} MiB; a row per line is expected; write it as .npy"
        )
    return line


def _are_names(fields: list[str]) -> bool:
    """Whether one of these fields is a word, so that the line names the columns.

    A missing value does not make a header: a row must not vanish because its first field is empty.
    """
    return any(field.strip().lower() not in _MISSING and not _is_number(field) for field in fields)


def _are_counted(fields: list[str], following: bytes) -> bool:
    """Whether this is the line 0,1,2,... by which pandas names columns without names (after an index or not).

    It might be data as well; only numbers with decimal points in the next line tell that it is not.
    """
    counted = fields[1:] if fields[0] == "" else fields
    return len(counted) > 2 and counted == [str(i) for i in range(len(counted))] and b"." in following


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _scan(path: Path, start: int) -> list[_Chunk]:
    """Cut the file into chunks of whole lines and count their rows; blank lines do not count."""
    chunks = []
    with path.open("rb") as file:
        file.seek(start)
        while text := file.read(PIECE_BYTES):
            if not text.endswith(b"\n"):
                text += _next_line(file, path)
            n_rows = sum(1 for line in text.splitlines() if line)
            if n_rows:
                chunks.append(_Chunk(start, len(text), n_rows))
            start += len(text)
    return chunks
