"""Lines of a text file, cut into chunks of a few megabytes of which each can be read, and parsed by pyarrow, alone.

Opening scans the file once for line ends. So rows are found by their numbers, and memory holds one chunk, whatever the
size of the file. Here are also lines of JSON (.jsonl, .ndjson): an object per row with numbers by name or one list of
numbers, or a list per row.
"""

from __future__ import annotations

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
from globular.data.columns import Column
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

    @property
    def suffix(self) -> str:
        """What the name ends in, but for the sign that it is packed."""
        return Path(self.path.stem if self.is_packed else self.path.name).suffix.lower()


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

        first, self._is_bare = _first_row(self._text)
        if self._is_bare and columns is not None:
            raise DataError(f"{self._path}: its rows are lists without names, so columns= cannot choose any")
        schema = _schema_of(first)
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
    columns = describe_schema(_schema_of(_first_row(text)[0]))
    return sum(chunk.n_rows for chunk in scan(text, 0)), columns


def _first_row(text: TextFile) -> tuple[dict[str, Any], bool]:
    """The first line that is not blank, and whether it is a bare list, which then has the name ""."""
    with text.open() as file:
        while (line := next_line(file, text.path)) and not line.strip():
            pass
    if not line:
        raise DataError(f"{text.path}: has no rows; check that it was written completely")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{text.path}: row 1 is not JSON ({error}); write one object or list per line") from error
    if isinstance(found, list) and found:
        return {"": found}, True
    if isinstance(found, dict):
        return found, False
    raise DataError(f"{text.path}: its first line is neither an object nor a list; write one per row")


def _schema_of(row: dict[str, Any]) -> Any:
    """What every column holds, by one row."""
    import pyarrow

    return pyarrow.schema([(name, _type_of(value)) for name, value in row.items()])


def _type_of(value: Any) -> Any:
    """The type of a number or of a list of numbers; any other for what cannot be clustered."""
    import pyarrow

    kinds = set(map(type, value)) if isinstance(value, list) else {type(value)}
    number = pyarrow.bool_() if kinds == {bool} else pyarrow.float64() if kinds and kinds <= {int, float} else None
    if number is None:
        return pyarrow.null() if value is None else pyarrow.string()
    return pyarrow.list_(number) if isinstance(value, list) else number
