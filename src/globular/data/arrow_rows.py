"""Rows of numbers from Arrow's columns, which parquet and feather files have as well as tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.columns import Column, choose_numbers
from globular.errors import DataError


def describe_schema(schema: Any) -> list[Column]:
    """What every column of a schema holds."""
    return [Column(field.name, _type_in_words(field.type), _kind(field.type)) for field in schema]


def _type_in_words(kind: Any) -> str:
    if _kind(kind) != "lists":
        return str(kind)
    length = f"of {kind.list_size} " if hasattr(kind, "list_size") else "of "
    return f"list {length}{kind.value_type}"


class ArrowRows:
    """Numeric columns, or one column of equally long lists, as rows of one array.

    `first_list` gives the first list of a column, where the type does not say how long its lists are.
    """

    def __init__(
        self, file: str, schema: Any, columns: Sequence[str] | None, first_list: Callable[[str], Any | None]
    ) -> None:
        self.file = file
        chosen = choose_numbers(file, describe_schema(schema), columns)
        self.names = tuple(column.name for column in chosen)
        self.are_lists = len(chosen) == 1 and chosen[0].kind == "lists"
        types = [schema.field(name).type for name in self.names]
        self.n_columns = self._list_length(types[0], first_list) if self.are_lists else len(types)
        types = [types[0].value_type] if self.are_lists else types
        self.dtype = np.result_type(*(kind.to_pandas_dtype() for kind in types)) if types else np.dtype(np.float64)

    def _list_length(self, kind: Any, first_list: Callable[[str], Any | None]) -> int:
        """Length of the lists: part of the type, or that of the first row."""
        from pyarrow import types

        if types.is_fixed_size_list(kind):
            return int(kind.list_size)
        first = first_list(self.names[0])
        if first is None:
            raise DataError(f"{self.file}: has no rows, so the length of its lists is unknown; remove the file")
        if not first.is_valid or len(first) == 0:
            raise DataError(f"{self.file}: the list in the first row is missing or empty; drop such rows")
        return len(first)

    def to_array(self, batch: Any) -> NDArray[Any]:
        """One array from the columns of a record batch."""
        if self.are_lists:
            return self._lists_to_array(batch.column(self.names[0]))
        rows = np.empty((batch.num_rows, self.n_columns), self.dtype)
        for position, name in enumerate(self.names):
            column = batch.column(name)
            self._refuse_missing(column, name)
            rows[:, position] = column.to_numpy(zero_copy_only=False)
        return rows

    def _lists_to_array(self, lists: Any) -> NDArray[Any]:
        """One array from a column of lists, which must all be equally long."""
        name = self.names[0]
        self._refuse_missing(lists, name)
        values = lists.flatten()
        self._refuse_missing(values, name)
        # without nulls a column of fixed-size lists can only be right; the others say each list's length
        if hasattr(lists, "offsets"):
            lengths = np.diff(lists.offsets.to_numpy())
            if (lengths != self.n_columns).any():
                other = int(lengths[lengths != self.n_columns][0])
                raise DataError(
                    f"{self.file}: column {name!r} has lists of length {self.n_columns} and {other}; "
                    "all rows need the same length"
                )
        return values.to_numpy(zero_copy_only=False).reshape(len(lists), self.n_columns)

    def _refuse_missing(self, column: Any, name: str) -> None:
        if column.null_count:
            raise DataError(f"{self.file}: column {name!r} has missing values; fill them in or drop these rows")


def _kind(kind: Any) -> Any:
    from pyarrow import types

    if _is_number(kind):
        return "numbers"
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return "lists" if is_list and _is_number(kind.value_type) else "other"


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
