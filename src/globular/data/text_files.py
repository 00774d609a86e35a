"""Tables of numbers as text: .csv with commas, .tsv with tabs, with or without a line of column names.

What separates the fields of a .csv file is told by its first two lines, if it is not a comma. A file that is packed by
gzip (.csv.gz) is unpacked into memory as text.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from globular.data.arrow_files import ArrowRows, describe_schema
from globular.data.columns import Column, reading
from globular.data.text_lines import LinesSource, TextFile, next_line, scan
from globular.errors import DataError

_DELIMITERS = {".csv": ",;\t| ", ".tsv": "\t"}
"""What may separate fields, the usual sign first."""
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})  # a value that is absent, not a name


@dataclass(frozen=True)
class Header:
    """What the first line says: the names, if it holds names, and the byte at which the numbers begin."""

    names: tuple[str, ...] | None
    titles: tuple[str, ...]
    """The names, or "column 1" and so on."""
    data_start: int
    delimiter: str


class TextSource(LinesSource):
    """A .csv or .tsv file."""

    def _open(self, columns: Sequence[str] | None) -> int:
        import pyarrow

        self._header = header = read_header(self._text)
        if header.names is None and columns is not None:
            raise DataError(f"{self._path}: has no line of column names, so columns= cannot choose any")
        if columns is None and header.titles[0] == "":
            raise DataError(
                f"{self._path}: the first column has no name; it looks like the row numbers that pandas and R "
                f"write. Write the file without them (index=False), or name the columns: {reading(str(self._path))}"
            )
        schema = pyarrow.schema([(title, pyarrow.float64()) for title in header.titles])
        self._rows = ArrowRows(str(self._path), schema, columns)
        self.column_names = None if header.names is None else self._rows.names
        return header.data_start

    def _table(self, text: bytes) -> Any:
        from pyarrow import csv as arrow_csv
        from pyarrow import float64

        names = self._rows.names
        kinds = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, float64()), include_columns=names, null_values=[]
        )
        return _parsed(text, self._header, kinds)

    def _fault(self, message: str, first: int) -> str:
        """Name the row, and the column that is not a number, and the remedy."""
        if found := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", message):
            row, expected, n_fields = map(int, found.groups())
            return (
                f"data row {first + row} has {n_fields} fields instead of {expected}; fields are separated by "
                f"{self._header.delimiter!r}"
            )
        if not (found := re.search(r"CSV column #(\d+): Row #(\d+): .*invalid value '(.*)'?$", message)):
            return f"cannot be parsed ({message})"
        title, value = self._header.titles[int(found[1])], found[3].removesuffix("'")
        if value.strip().lower() in _MISSING:
            remedy = "fill in the missing values or drop these rows"
        elif re.fullmatch(r"\s*[-+]?\d*,\d+\s*", value):
            remedy = "write numbers with decimal points, not commas"
        elif len(self._header.titles) == 1 and re.search(r"[;,|]", value):
            remedy = "fields are separated by tabs in a .tsv file; call it .csv"
        elif self._header.names is None:
            remedy = "remove what is not a number"
        else:
            remedy = f"take only the numeric columns: {reading(str(self._path))}"
        column = f"column {title!r}" if self._header.names else title
        return f"data row {first + int(found[2])}: {column} holds {value!r}, which is not a number; {remedy}"


def _parsed(text: bytes, header: Header, kinds: Any, bad_rows: Any = None) -> Any:
    """Lines as a table of Arrow; one thread reads them, which knows the numbers of rows."""
    import pyarrow
    from pyarrow import csv as arrow_csv

    return arrow_csv.read_csv(
        pyarrow.BufferReader(text),
        arrow_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=header.titles),
        arrow_csv.ParseOptions(delimiter=header.delimiter, invalid_row_handler=bad_rows),
        kinds,
    )


def describe_text(path: Path) -> tuple[int, list[Column]]:
    """The number of rows, and the columns as the first rows show them; without a line of names these are empty."""
    from pyarrow import csv as arrow_csv

    text = TextFile(path)
    header = read_header(text)
    chunks = scan(text, header.data_start)
    names = header.names or ("",) * len(header.titles)
    if not chunks:
        return 0, [Column(name, "number", "numbers") for name in names]
    no_words = arrow_csv.ConvertOptions(true_values=[], false_values=[])  # "true" is no number where rows are read
    table = _parsed(chunks[0].read(text), header, no_words, lambda row: "skip")
    numeric = [column.kind == "numbers" or column.type == "null" for column in describe_schema(table.schema)]
    columns = [
        Column(name, "number" if is_number else "text", "numbers" if is_number else "other")
        for name, is_number in zip(names, numeric, strict=True)
    ]
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
        return Header(None, tuple(f"column {field + 1}" for field in range(len(fields))), start, delimiter)
    names = tuple(name.strip().removeprefix("#").strip() for name in fields)  # "# a,b" is numpy.savetxt's
    return Header(names, names, end, delimiter)


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
