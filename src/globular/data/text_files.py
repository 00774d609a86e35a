"""Text files with a row per line, cut into chunks of a few megabytes of which each can be read, and parsed by pyarrow,
alone.

Opening scans the file once for line ends. So rows are found by their numbers, and memory holds one chunk, whatever the
size of the file. Formats are .csv with commas and .tsv with tabs, with or without a line of column names, and lines of
JSON (.jsonl, .ndjson): an object per row with numbers by name or one list of numbers, or a list per row. What separates
the fields of a .csv file is told by its first two lines, if it is not a comma. A file that is packed by gzip (.csv.gz)
is unpacked into memory as text.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from globular.data.arrow_files import ArrowRows, describe_schema, first_line
from globular.data.blocks import Column, reading
from globular.data.streamed import PIECE_BYTES, FileVersion, StreamedSource
from globular.errors import DataError, import_extra
from globular.machine import check_fits

_LONGEST_LINE = 1 << 26  # fields take more room than their text, and a line is the least that can be parsed


class TextFile:
    """The bytes of a text file, in the file or, where that is packed, in memory."""

    def __init__(self, path: Path) -> None:
        import_extra("pyarrow", "pyarrow", "io", f"reading {path}")
        self.path = path
        self.is_packed = path.suffix.lower() == ".gz"
        self._content = _unpacked(path) if self.is_packed else b""

    def open(self) -> BinaryIO:
        """Begin to read."""
        return io.BytesIO(self._content) if self.is_packed else self.path.open("rb")


@dataclass(frozen=True)
class Chunk:
    """A run of whole lines: its place in the file and its number of rows."""

    offset: int
    n_bytes: int
    n_rows: int

    def read(self, text: TextFile) -> bytes:
        """The lines."""
        with text.open() as file:
            file.seek(self.offset)
            return file.read(self.n_bytes)


def scan(source: TextFile, start: int) -> list[Chunk]:
    """Cut the file into chunks of whole lines and count their rows; blank lines do not count."""
    chunks = []
    with source.open() as file:
        file.seek(start)
        while text := file.read(PIECE_BYTES):
            if not text.endswith(b"\n"):
                text += next_line(file, source.path)
            n_rows = sum(1 for line in text.splitlines() if line)
            if n_rows:
                chunks.append(Chunk(start, len(text), n_rows))
            start += len(text)
    return chunks


def next_line(file: BinaryIO, path: Path) -> bytes:
    """The rest of the present line; one that is absurdly long is refused before it fills the memory."""
    line = file.readline(_LONGEST_LINE)
    if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
        raise DataError(
            f"{path}: has a line of more than {_LONGEST_LINE >> 20} MiB; a row per line is expected; write it as .npy"
        )
    return line


def _unpacked(path: Path) -> bytes:
    """The content of a .gz file, as long as memory has room for it."""
    pieces, size = [], 0
    try:
        with gzip.open(path) as file:
            while piece := file.read(PIECE_BYTES):
                pieces.append(piece)
                size += len(piece)
                check_fits(2 * size, f"{path}: its text, unpacked", "unpack it, then it is read in parts")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: is truncated, corrupt or not packed by gzip ({error}); copy it again") from error
    return b"".join(pieces)


class LinesSource(StreamedSource):
    """A text file with a row per line, parsed a chunk at a time into float64."""

    _rows: ArrowRows

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self._path = path
        version = FileVersion.of(path)
        with version.reading():
            self._text = TextFile(path)
            self._chunks = scan(self._text, self._open(columns))
        n_rows = [chunk.n_rows for chunk in self._chunks]
        super().__init__(str(path), n_rows, self._rows.n_columns, self._rows.dtype, version)
        if self._chunks:
            with version.reading():
                self._parse(0)  # a column of text should fail now, not in the middle of a fit

    @abstractmethod
    def _open(self, columns: Sequence[str] | None) -> int:
        """Set `_rows` and `column_names` by the first lines, and return the byte at which the rows begin."""

    @abstractmethod
    def _table(self, text: bytes) -> Any:
        """These lines as a table of Arrow."""

    @abstractmethod
    def _fault(self, message: str, first: int) -> str:
        """An error of Arrow in the words of the user; `first` rows stand before the lines that it is about."""

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        yield self._parse(segment)[first:last]

    def _parse(self, segment: int) -> NDArray[Any]:
        """Read and parse one chunk."""
        from pyarrow import ArrowException

        chunk, first = self._chunks[segment], int(self._bounds[segment])
        try:
            table = self._table(chunk.read(self._text))
        except ArrowException as error:
            raise DataError(f"{self._path}: {self._fault(first_line(error), first)}") from error
        if table.num_rows != chunk.n_rows:
            raise DataError(f"{self._path}: a line does not hold one row; write a row per line, without breaks in it")
        return self._rows.to_array(table.combine_chunks().to_batches()[0], first)


class JSONLinesSource(LinesSource):
    """A file with an object or a list per line."""

    def _open(self, columns: Sequence[str] | None) -> int:
        import pyarrow

        first, schema, self._is_bare = _first_row(self._text)
        if self._is_bare and columns is not None:
            raise DataError(f"{self._path}: its rows are lists without names, so columns= cannot choose any")
        self._rows = ArrowRows(str(self._path), schema, columns, lambda name: pyarrow.scalar([True] * len(first[name])))
        self._schema = pyarrow.schema([schema.field(name) for name in self._rows.names])
        self.column_names = None if self._is_bare else self._rows.names
        return 0

    def _table(self, text: bytes) -> Any:
        import pyarrow
        from pyarrow import json as arrow_json

        if self._is_bare:
            text = b"\n".join(b'{"":' + line + b"}" for line in text.splitlines() if line)
        # every type is given: inference would follow lists in lists until the stack ends
        parsing = arrow_json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore")
        reading = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        return arrow_json.read_json(pyarrow.BufferReader(text), reading, parsing)

    def _fault(self, message: str, first: int) -> str:
        where = re.search(r"(.*) in row (\d+)", message)
        what, row = (where[1], f"row {first + int(where[2]) + 1}") if where else (message, "a row")
        if "changed from" in what:
            return f"{row} holds what is not a number ({what}); fill it in or drop this row"
        return f"{row} is not JSON ({what}); write one object or list per line"


def describe_json(path: Path) -> tuple[int, list[Column]]:
    """The number of rows and the columns, whatever they hold by the first row; those of lists have no names."""
    text = TextFile(path)
    columns = describe_schema(_first_row(text)[1])
    return sum(chunk.n_rows for chunk in scan(text, 0)), columns


def _first_row(text: TextFile) -> tuple[dict[str, Any], Any, bool]:
    """The first line that is not blank, what every column holds by it, and whether it is a bare list, of name ""."""
    import pyarrow

    with text.open() as file:
        while (line := next_line(file, text.path)) and not line.strip():
            pass
    if not line:
        raise DataError(f"{text.path}: has no rows; check that it was written completely")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{text.path}: row 1 is not JSON ({error}); write one object or list per line") from error
    if not (isinstance(found, dict) or (isinstance(found, list) and found)):
        raise DataError(f"{text.path}: its first line is neither an object nor a list; write one per row")
    row = found if isinstance(found, dict) else {"": found}
    return row, pyarrow.schema([(name, _type_of(value)) for name, value in row.items()]), row is not found


def _type_of(value: Any) -> Any:
    """The type of a number or of a list of numbers; any other for what cannot be clustered."""
    import pyarrow

    kinds = set(map(type, value)) if isinstance(value, list) else {type(value)}
    number = pyarrow.bool_() if kinds == {bool} else pyarrow.float64() if kinds and kinds <= {int, float} else None
    if number is None:
        return pyarrow.null() if value is None else pyarrow.string()
    return pyarrow.list_(number) if isinstance(value, list) else number


_DELIMITERS = ",;\t| "
"""What may separate the fields of a .csv file, the usual sign first; those of .tsv files have tabs."""
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
        known = "\t" if path.name.lower().endswith((".tsv", ".tsv.gz")) else _DELIMITERS
        delimiter = _delimiter_of(text, _decoded(following), known)
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
