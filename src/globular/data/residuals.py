"""What codes leave of the rows: a source that subtracts as it is read, so that no copy of all rows is ever made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import Matrix, RowBlock, Source, working_dtype
from globular.data.sources import SomeRows
from globular.threads import even_ranges, run_all

Codes = NDArray[np.unsignedinteger[Any]]
Codebooks = Sequence[NDArray[np.floating[Any]]]
ROWS_AT_ONCE = 1 << 10
"""Rows from which a thread subtracts before it takes the next; they and their code words stay in its cache."""


class Residuals(SomeRows):
    """The rows of a source less the sum of their code words, in the working dtype; without codes the rows themselves.

    `codes` has a row for each row of the source, and a column for each codebook. Rows scaled to unit length first are
    those of the cosine metric; rows of zeros stay zero.
    """

    def __init__(
        self, source: Source, codes: Codes, codebooks: Codebooks, *, unit_rows: bool = False, n_threads: int = 1
    ) -> None:
        super().__init__(source, source.n_rows)
        self.dtype = working_dtype(source.dtype)
        self.in_memory = False
        self._codes, self._codebooks = codes, codebooks[: codes.shape[1]]
        self._unit_rows, self._n_threads = unit_rows, n_threads

    def numbers_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        return rows

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[RowBlock]:
        for block in self.source.blocks(max_rows, start, stop):
            yield RowBlock(block.start, block.stop, self._left(block.rows, self._codes[block.start : block.stop]))

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        return self._left(self.source.take(indices), self._codes[indices])

    def _left(self, rows: Any, codes: Codes) -> NDArray[Any]:
        left = np.empty(rows.shape, self.dtype)

        def subtract(span: tuple[int, int]) -> None:
            some, part = left[slice(*span)], slice(*span)
            some[:] = rows[part]
            if self._unit_rows:
                lengths = np.sqrt(np.einsum("ij,ij->i", some, some, dtype=np.float64))
                some /= np.where(lengths > 0, lengths, 1.0)[:, None].astype(self.dtype)
            for level, codebook in enumerate(self._codebooks):
                some -= np.take(codebook, codes[part, level], axis=0)

        run_all(subtract, even_ranges(len(rows), ROWS_AT_ONCE), self._n_threads, calls_blas=False)
        return left
