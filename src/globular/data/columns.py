"""Columns by name, the same way for every format that has names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from globular.data.blocks import Source
from globular.errors import DataError

_MOST_LISTED = 20
_MOST_PROPOSED = 6


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table as it was found."""

    name: str
    type: str
    """Its type in the words of the file."""
    kind: Literal["numbers", "lists", "other"]
    """Whether it holds numbers, lists of numbers, or what cannot be clustered."""


def choose_columns(file: str, names: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """Positions of `columns` among `names`, in the order asked for; all of them if none are asked for."""
    wanted = names if columns is None else columns
    counts, times = Counter(names), Counter(wanted)
    unknown = [column for column in wanted if column not in counts]
    if unknown or not (wanted or columns is None):
        listing = ", ".join(names[:_MOST_LISTED]) + (", ..." if len(names) > _MOST_LISTED else "")
        asked = f"no column {', '.join(map(repr, unknown))}" if unknown else "columns= names no column"
        raise DataError(f"{file}: {asked}; it has: {listing}")
    for column in wanted:
        if counts[column] > 1:
            remedy = "rename them" + (f", or choose others: {reading(file)}" if columns is None else "")
            raise DataError(f"{file}: {counts[column]} columns are called {column!r}; {remedy}")
        if times[column] > 1:
            raise DataError(f"{file}: column {column!r} is asked for twice; name it once")
    place = {name: position for position, name in enumerate(names)}
    return [place[column] for column in wanted]


def choose_numbers(file: str, table: Sequence[Column], columns: Sequence[str] | None) -> list[Column]:
    """The columns to read: those asked for, or all; they must be numbers, or one column of lists."""
    chosen = [table[i] for i in choose_columns(file, [column.name for column in table], columns)]
    numbers = [column.name for column in chosen if column.kind == "numbers"]
    lists = [column.name for column in chosen if column.kind == "lists"]
    if len(numbers) == len(chosen) or (len(lists) == 1 and len(chosen) == 1):
        return chosen
    usable = lists[:1] or numbers
    listing = ", ".join([*map(repr, usable[:_MOST_PROPOSED]), *(["..."] if len(usable) > _MOST_PROPOSED else [])])
    remedy = f"take the usable ones: {reading(file, f'[{listing}]')}" if usable else "it has no numeric column"
    other = [f"{column.name!r} ({column.type})" for column in chosen if column.kind == "other"]
    if other:
        those = f"column {other[0]} does not" if len(other) == 1 else f"columns {', '.join(other[:5])} do not"
        raise DataError(f"{file}: {those} hold numbers; {remedy}")
    raise DataError(
        f"{file}: column {lists[0]!r} holds lists and {len(chosen) - 1} other columns stand beside it; {remedy}"
    )


def reading(file: str, names: str = "[...]") -> str:
    """How to take some columns of a file, or of a data frame; the command says ``--columns``."""
    return f"X[{names}]" if file == "X" else f"globular.io.open_source(path, columns={names})"


def column_names(source: Source) -> list[str] | None:
    """A name for every column, if the source knows them; a column of lists has one name for many."""
    names = getattr(source, "column_names", None)
    return list(names) if names is not None and len(names) == source.n_columns else None


def check_columns(source: Source, n_columns: int, names: Sequence[str] | None) -> None:
    """Refuse a table without the columns of a fit, or with the same in another order, as far as names tell."""
    own = column_names(source)
    if own is not None and names is not None and own != list(names):
        listing = [str(name) for name in names] if len(names) <= _MOST_LISTED else "[...]"
        chosen = reading(source.name, str(listing))
        raise DataError(f"{source.name}: other columns than those of the fit, or in another order; choose {chosen}")
    if source.n_columns != n_columns:
        raise DataError(
            f"{source.name} has {source.n_columns} columns, the model was fitted on {n_columns}; choose "
            f"{reading(source.name)}"
        )
