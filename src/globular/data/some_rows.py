"""Some of the rows of a source, as a source of their own: a range of them, or those with certain numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import Block, Matrix, Source, check_finite, check_indices, check_span, regroup


class SomeRows(ABC):
    """What is common to both: all that is not said here is as in the other source."""

    def __init__(self, source: Source, n_rows: int) -> None:
        self.source = source
        self.n_rows = n_rows
        self.n_columns = source.n_columns
        self.name = source.name
        self.dtype: np.dtype[Any] = source.dtype
        self.is_sparse = source.is_sparse
        self.in_memory = source.in_memory

    @abstractmethod
    def numbers_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """The numbers of these rows in the other source."""

    @abstractmethod
    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Give rows `start` to `stop` in order, `max_rows` at a time."""

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        """Return these rows in this order."""
        return self.source.take(self.numbers_of(check_indices(indices, self.n_rows)))

    def whole(self) -> Matrix:
        """Return every row in memory."""
        return next(self.blocks(max(1, self.n_rows))).rows


class RowRange(SomeRows):
    """Rows `start` to `stop` (exclusive) of another source, counted from 0."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        super().__init__(source, stop - start)
        self._start = start

    def numbers_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        return rows + self._start

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        first, last = check_span(max_rows, start, stop, self.n_rows)
        for block in self.source.blocks(max_rows, self._start + first, self._start + last):
            yield Block(block.start - self._start, block.stop - self._start, block.rows)


class ChosenRows(SomeRows):
    """The rows with these ascending numbers of another source of dense rows; a number may be repeated."""

    def __init__(self, source: Source, numbers: NDArray[np.intp]) -> None:
        super().__init__(source, len(numbers))
        self._numbers = numbers

    def numbers_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        return self._numbers[rows]

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """What lies between the rows is read, too."""
        first, last = check_span(max_rows, start, stop, self.n_rows)
        return regroup(self._pieces(max_rows, first, last), max_rows, first, last, self.dtype)

    def _pieces(self, max_rows: int, first: int, last: int) -> Iterator[NDArray[Any]]:
        wanted = self._numbers[first:last]
        if not len(wanted):
            return
        for block in self.source.blocks(max_rows, int(wanted[0]), int(wanted[-1]) + 1):
            here = slice(*np.searchsorted(wanted, [block.start, block.stop]))
            yield np.asarray(block.rows)[wanted[here] - block.start]


def choose_rows(rows: Any, numbers: NDArray[np.intp] | None) -> Any:
    """Those rows of a matrix or of a source; all where there are no numbers."""
    if numbers is None:
        return rows
    return ChosenRows(rows, numbers) if isinstance(rows, Source) else rows[numbers]


def check_rows(rows: Matrix, source: Source, numbers: NDArray[np.intp]) -> None:
    """Refuse NaN and infinity in rows that a source has given, by the number that a row has in its file."""
    while isinstance(source, SomeRows):
        numbers = source.numbers_of(numbers)
        source = source.source
    check_finite(rows, source.name, numbers)
