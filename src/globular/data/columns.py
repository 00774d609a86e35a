"""Choosing columns by name, the same way for every format that has names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from globular.errors import DataError


def choose_columns(file: str, names: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """Positions of `columns` among `names`, in the order asked for; all of them if none are asked for."""
    if columns is None:
        return list(range(len(names)))
    unknown = [column for column in columns if column not in names]
    if unknown or not columns:
        listing = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        asked = f"no column {', '.join(map(repr, unknown))}" if unknown else "columns= names no column"
        raise DataError(f"{file}: {asked}; it has: {listing}")
    counts = Counter(names)
    for column in columns:
        if counts[column] > 1:
            raise DataError(f"{file}: {counts[column]} columns are called {column!r}; rename them")
    return [names.index(column) for column in columns]
