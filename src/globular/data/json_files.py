"""Lines of JSON (.jsonl, .ndjson): an object per row with numbers by name or one list of numbers, or a list per row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.columns import Column, choose_numbers
from globular.data.streamed import StreamedSource
from globular.data.text_lines import TextFile, next_line, scan
from globular.data.versions import FileVersion
from globular.errors import DataError


class JSONLinesSource(StreamedSource):
    """A file with a row per line, parsed a few megabytes at a time into float64."""

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self._path = path
        version = FileVersion.of(path)
        with version.reading():
            self._text = TextFile(path)
            self._chunks = scan(self._text, 0)
            first = _first_row(self._text)
            self.column_names, self._length = self._choose(first, columns)
        segment_rows = [chunk.n_rows for chunk in self._chunks]
        super().__init__(str(path), segment_rows, self._length, np.dtype(np.float64), version)
        if self._chunks:
            with version.reading():
                self._parse(0)  # a row that is not like the others should fail now, not in the middle of a fit

    def _choose(self, first: Any, columns: Sequence[str] | None) -> tuple[tuple[str, ...] | None, int]:
        """The names of the columns, None where rows are lists without names, and the length of a row."""
        if isinstance(first, dict):
            chosen = choose_numbers(str(self._path), _columns_of(first.items()), columns)
            self._is_list = len(chosen) == 1 and chosen[0].kind == "lists"
            names = tuple(column.name for column in chosen)
            return names, len(first[names[0]]) if self._is_list else len(names)
        if columns is not None:
            raise DataError(f"{self._path}: its rows are lists without names, so columns= cannot choose any")
        self._is_list = True
        return None, len(first)

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        yield self._parse(segment)[first:last]

    def _parse(self, segment: int) -> NDArray[np.float64]:
        """Read and parse one chunk."""
        lines = [line for line in self._chunks[segment].read(self._text).splitlines() if line]
        number, rows = int(self._bounds[segment]), []
        for line in lines:
            number += 1
            rows.append(self._row(_parsed(line, self._path, number), number))
        try:
            return np.array(rows, dtype=np.float64)
        except OverflowError as error:
            raise DataError(f"{self._path}: holds a whole number that no float can hold; drop that row") from error

    def _row(self, value: Any, number: int) -> list[float]:
        """The numbers of one row, as many as the first one has."""
        names = self.column_names
        if names is None:
            row = value
        elif not isinstance(value, dict) or any(name not in value for name in names):
            raise DataError(f"{self._path}: row {number} has not all of {', '.join(names)}; give every row the same")
        else:
            row = value[names[0]] if self._is_list else [value[name] for name in names]
        if not _is_list_of_numbers(row):
            raise DataError(f"{self._path}: row {number} holds what is not a number; fill it in or drop this row")
        if len(row) != self._length:
            raise DataError(
                f"{self._path}: row {number} has {len(row)} numbers instead of {self._length}; all rows need the same"
            )
        return row


def describe_json(path: Path) -> tuple[int, list[Column]]:
    """The number of rows and the columns, whatever they hold by the first row; those of lists have no names."""
    text = TextFile(path)
    first = _first_row(text)
    items = first.items() if isinstance(first, dict) else [("", value) for value in first]
    return sum(chunk.n_rows for chunk in scan(text, 0)), _columns_of(items)


def _first_row(text: TextFile) -> Any:
    """The first line that is not blank, parsed: an object or a list."""
    with text.open() as file:
        while line := next_line(file, text.path):
            if line.strip():
                found = _parsed(line, text.path, 1, _distinct)
                if isinstance(found, dict) or (isinstance(found, list) and found):
                    return found
                raise DataError(f"{text.path}: its first line is neither an object nor a list; write one per row")
    raise DataError(f"{text.path}: has no rows; check that it was written completely")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ; of equal ones JSON keeps the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _parsed(line: bytes, path: Path, number: int, of_pairs: Callable[..., Any] | None = None) -> Any:
    try:
        return json.loads(line, object_pairs_hook=of_pairs)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: row {number} is not JSON ({error}); write one object or list per line") from error


def _columns_of(row: Iterable[tuple[str, Any]]) -> list[Column]:
    """What every column holds, by one row."""
    columns = []
    for name, value in row:
        if _is_number(value):
            columns.append(Column(name, "number", "numbers"))
        elif _is_list_of_numbers(value) and value:
            columns.append(Column(name, f"list of {len(value)} numbers", "lists"))
        else:
            columns.append(Column(name, "text" if isinstance(value, str) else type(value).__name__, "other"))
    return columns


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool)


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))
