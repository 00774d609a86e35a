"""Lines of JSON (.jsonl, .ndjson): an object per row with numbers by name or one list of numbers, or a list per row."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from globular.data.arrow_files import ArrowRows, describe_schema
from globular.data.columns import Column
from globular.data.text_lines import LinesSource, TextFile, next_line, scan
from globular.errors import DataError


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
