"""Columns by name, the same way for every format that has names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from globular.data.blocks import Source
from globular.errors import DataError

_MOST_LISTED = 20


def choose_columns(file: str, names: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """Positions of `columns` among `names`, in the order asked for; all of them if none are asked for."""
    if columns is None:
        return list(range(len(names)))
    unknown = [column for column in columns if column not in names]
    if unknown or not columns:
        listing = ", ".join(names[:_MOST_LISTED]) + (", ..." if len(names) > _MOST_LISTED else "")
        asked = f"no column {', '.join(map(repr, unknown))}" if unknown else "columns= names no column"
        raise DataError(f"{file}: {asked}; it has: {listing}")
    counts = Counter(names)
    for column in columns:
        if counts[column] > 1:
            raise DataError(f"{file}: {counts[column]} columns are called {column!r}; rename them")
    return [names.index(column) for column in columns]


def are_not_numbers(frame: Any) -> str:
    """What to say of the columns of a data frame that are not numbers; nothing where there are none, or no types."""
    types = zip(getattr(frame, "columns", ()), getattr(frame, "dtypes", ()), strict=False)
    words = [repr(name) for name, dtype in types if getattr(dtype, "kind", "f") not in "biuf"]
    return (
        f"X: columns that are not numbers: {', '.join(words)}; drop or encode them first, e.g. "
        'X.select_dtypes("number")'
    ) if words else ""  # fmt: skip


def column_names(source: Source) -> list[str] | None:
    """A name for every column, if the source knows them; a column of lists has one name for many."""
    names = getattr(source, "column_names", None)
    return list(names) if names is not None and len(names) == source.n_columns else None


def check_columns(source: Source, n_columns: int, names: Sequence[str] | None) -> None:
    """Refuse a table without the columns of a fit, or with the same in another order, as far as names tell."""
    own = column_names(source)
    if own is not None and names is not None and own != list(names):
        listing = [str(name) for name in names] if len(names) <= _MOST_LISTED else "[...]"
        raise DataError(
            f"{source.name}: other columns than those of the fit, or in another order; choose columns={listing}"
        )
    if source.n_columns != n_columns:
        raise DataError(
            f"{source.name} has {source.n_columns} columns, the model was fitted on {n_columns}; choose columns=[...]"
        )
