"""A range of the rows of a source, as a source of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import Block, Matrix, Source, check_indices, check_span


class RowRange:
    """Rows `start` to `stop` (exclusive) of another source, counted from 0."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self._source = source
        self._start = start
        self.n_rows = stop - start
        self.n_columns = source.n_columns
        self.name = source.name
        self.dtype: np.dtype[Any] = source.dtype
        self.is_sparse = source.is_sparse
        self.in_memory = source.in_memory

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Give rows `start` to `stop` in order, `max_rows` at a time."""
        first, last = check_span(max_rows, start, stop, self.n_rows)
        for block in self._source.blocks(max_rows, self._start + first, self._start + last):
            yield Block(block.start - self._start, block.stop - self._start, block.rows)

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        """Return these rows in this order."""
        return self._source.take(check_indices(indices, self.n_rows) + self._start)

    def whole(self) -> Matrix:
        """Return every row in memory."""
        return next(self.blocks(max(1, self.n_rows))).rows
