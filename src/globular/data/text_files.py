"""Tables of numbers as text: .csv with commas, .tsv with tabs, with or without a line of column names.

What separates the fields of a .csv file is told by its first two lines, if it is not a comma. A file that is packed by
gzip (.csv.gz) is unpacked into memory as text.

Opening scans the file once for line ends, so that later any few megabytes of it can be parsed alone. NumPy's
own parser does the work: on one thread it is as fast as pyarrow's, and it needs no extra package.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from globular.data.columns import Column, choose_columns, reading
from globular.data.streamed import StreamedSource
from globular.data.text_lines import TextFile, next_line, scan
from globular.data.versions import FileVersion
from globular.errors import DataError

_DELIMITERS = {".csv": ",;\t| ", ".tsv": "\t"}
"""What may separate fields, the usual sign first."""
_WORDS = {"\t": "tabs", " ": "single spaces"}
_DESCRIBED_ROWS = 100
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})  # a value that is absent, not a name


@dataclass(frozen=True)
class Header:
    """What the first line says: the names, if it holds names, and the byte at which the numbers begin."""

    names: tuple[str, ...] | None
    n_fields: int
    data_start: int
    delimiter: str


class TextSource(StreamedSource):
    """A .csv or .tsv file, parsed a few megabytes at a time into float64."""

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self._path = path
        version = FileVersion.of(path)
        with version.reading():
            self._text = TextFile(path)
            self._header = read_header(self._text)
            self._delimiter = self._header.delimiter
            self._used = self._choose(columns)
            self._chunks = scan(self._text, self._header.data_start)
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
                f"write. Write the file without them (index=False), or name the columns: {reading(str(self._path))}"
            )
        return choose_columns(str(self._path), names, columns)

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        yield self._parse(segment)[first:last]

    def _parse(self, segment: int) -> NDArray[np.float64]:
        """Read and parse one chunk."""
        chunk = self._chunks[segment]
        text = chunk.read(self._text)
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
            with suppress(csv.Error):
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
                separator = _WORDS.get(self._delimiter, repr(self._delimiter))
                raise DataError(
                    f"{self._path}: data row {number} has {len(fields)} fields instead of "
                    f"{self._header.n_fields}; fields are separated by {separator}"
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
        elif all(re.fullmatch(r"\s*[-+]?\d*,\d+\s*", fields[field]) for field in bad):
            remedy = "write numbers with decimal points, not commas"
        elif len(fields) == 1 and re.search(r"[;,|]", fields[0]):
            remedy = "fields are separated by tabs in a .tsv file; call it .csv"
        elif self._header.names is None:
            remedy = "remove what is not a number"
        else:
            remedy = f"take only the numeric columns: {reading(str(self._path))}"
        raise DataError(f"{self._path}: data row {number}: {what}, which is not a number; {remedy}")

    def _title(self, field: int) -> str:
        names = self._header.names
        return f"column {field + 1}" if names is None else f"column {names[field]!r}"


def describe_text(path: Path) -> tuple[int, list[Column]]:
    """The number of rows, and the columns as the first rows show them; without a line of names these are empty."""
    text = TextFile(path)
    header = read_header(text)
    chunks = scan(text, header.data_start)
    names = header.names or ("",) * header.n_fields
    first = chunks[0].read(text).splitlines()[:_DESCRIBED_ROWS] if chunks else []
    lines = [line.decode("latin-1") for line in first if line]
    rows = [row for row in csv.reader(lines, delimiter=header.delimiter) if len(row) == len(names)]
    columns = []
    for field, name in enumerate(names):
        values = [row[field] for row in rows if row[field].strip().lower() not in _MISSING]
        is_number = all(map(_is_number, values))
        columns.append(Column(name, "number" if is_number else "text", "numbers" if is_number else "other"))
    return sum(chunk.n_rows for chunk in chunks), columns


def _delimiter_of(line: str, following: str, known: str) -> str:
    """The sign that separates the fields of the first line: the usual one, or one that cuts both lines alike."""
    lines = [text for text in (line, following) if text.strip()]

    def fits(sign: str) -> bool:
        rows = [next(csv.reader([text.rstrip("\r\n")], delimiter=sign)) for text in lines]
        return len({len(row) for row in rows}) == 1 and len(rows[0]) > 1

    def is_plain(sign: str) -> bool:  # no field of the last line is a number but for a comma or a semicolon in it
        return not any(re.search(r"\d[,;|]\s*[-+]?\d", field) for field in lines[-1].split(sign))

    for sign in known:
        if fits(sign) and is_plain(sign):
            return sign
    return next((sign for sign in ";" + known if sign in known and fits(sign)), known[0])


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def read_header(source: TextFile) -> Header:
    """Look at the first line that is not blank: names or numbers?"""
    path = source.path
    with source.open() as file:
        if b"\0" in file.read(4096):
            raise DataError(f"{path}: is not a text file in UTF-8 although its name says so; write it again")
        file.seek(0)
        start, line = 0, next_line(file, path)
        while line and not line.strip():
            start, line = file.tell(), next_line(file, path)
        if line.startswith(b"\xef\xbb\xbf"):  # byte order mark of Windows editors
            start, line = start + 3, line[3:]
        end, following = file.tell(), next_line(file, path)
    if not line:
        raise DataError(f"{path}: has no rows; check that it was written completely")
    text = _decoded(line)
    try:
        delimiter = _delimiter_of(text, _decoded(following), _DELIMITERS[source.suffix])
        fields = next(csv.reader([text], delimiter=delimiter))
    except csv.Error as error:  # carriage returns within a line, or a field without end
        raise DataError(f"{path}: cannot be parsed ({error}); end lines by line feeds") from error
    if not _are_names(fields) and not _are_counted(fields, following):
        return Header(None, len(fields), start, delimiter)
    names = tuple(name.strip().removeprefix("#").strip() for name in fields)  # "# a,b" is numpy.savetxt's
    return Header(names, len(fields), end, delimiter)


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
