"""Some of the rows of a source, as a source of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import Block, Matrix, Source, check_indices, check_span, regroup


class ChosenRows:
    """The rows with these ascending numbers of another source of dense rows; a number may be repeated."""

    is_sparse = False
    in_memory = False

    def __init__(self, source: Source, numbers: NDArray[np.intp]) -> None:
        self._source = source
        self._numbers = numbers
        self.n_rows = len(numbers)
        self.n_columns = source.n_columns
        self.name = source.name
        self.dtype: np.dtype[Any] = source.dtype

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Give rows `start` to `stop` in order, `max_rows` at a time; what lies between them is read, too."""
        first, last = check_span(max_rows, start, stop, self.n_rows)
        return regroup(self._pieces(max_rows, first, last), max_rows, first, last, self.dtype)

    def _pieces(self, max_rows: int, first: int, last: int) -> Iterator[NDArray[Any]]:
        wanted = self._numbers[first:last]
        if not len(wanted):
            return
        for block in self._source.blocks(max_rows, int(wanted[0]), int(wanted[-1]) + 1):
            here = slice(*np.searchsorted(wanted, [block.start, block.stop]))
            yield np.asarray(block.rows)[wanted[here] - block.start]

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        """Return these rows in this order."""
        return self._source.take(self._numbers[check_indices(indices, self.n_rows)])

    def whole(self) -> Matrix:
        """Return every row in memory."""
        return next(self.blocks(max(1, self.n_rows))).rows
