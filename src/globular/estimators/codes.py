"""Codebooks, and what they say of rows: codes by a beam, rows from codes, errors; and codebooks from codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.kmeans.residual import make_unique
from globular.data.blocks import Source
from globular.data.residuals import ROWS_AT_ONCE, Codes, Residuals
from globular.data.sources import check_rows
from globular.estimators.checks import check_allocation
from globular.model.statistics import F64, Floats
from globular.passes.registry import shard_over
from globular.seam.answers import Coding, Own
from globular.seam.passes import Assign, SumByLabel, TakeLabels
from globular.seam.shard import Shard, answer
from globular.threads import even_ranges, run_all

Rows: TypeAlias = Source | Shard
"""Rows that this process reads, or a shard of rows that lie on a card or on workers."""
ROWS_PER_BLOCK = 1 << 16
"""Rows whose errors are added up at once; another value changes the last bits of `inertia_`."""


@dataclass(frozen=True, slots=True)
class Coder:
    """Codebooks as they are; whoever holds the list may add to it."""

    codebooks: list[Any]
    unit_rows: bool
    n_threads: int

    @property
    def sizes(self) -> list[int]:
        """The number of words of every codebook."""
        return [len(codebook) for codebook in self.codebooks]

    def left(self, rows: Rows, codes: Codes, weights: F64 | None = None) -> Shard:
        """What the codes leave of the rows, with these weights, or with those that a shard has."""
        if not isinstance(rows, Source):
            return rows.left(codes[:, : len(self.codebooks)], self.codebooks[: codes.shape[1]])
        return shard_over(self._residuals(rows, codes), weights, n_threads=self.n_threads)

    def _residuals(self, rows: Source, codes: Codes) -> Residuals:
        return Residuals(rows, codes, self.codebooks, unit_rows=self.unit_rows, n_threads=self.n_threads)

    def plain(self, rows: Rows) -> Shard:
        """The rows as codes describe them: in the working type, and of unit length if the metric is the cosine."""
        return self.left(rows, np.empty((rows.n_rows, 0), dtype=np.uint8))

    def encode(self, rows: Rows, beam: int, old: Codes | None = None) -> Codes:
        """The codes of all rows; those that they have already stay where they are no worse."""
        codes: Codes = answer(self.plain(rows), Coding(self.codebooks, beam), "codes")[:, 0]
        if old is None:
            return codes
        better = self._squares(rows, codes) < self._squares(rows, old)
        return np.where(better[:, None], codes, old)

    def _squares(self, rows: Rows, codes: Codes) -> F64:
        """Squared distances of the rows to what codes stand for."""
        if isinstance(rows, Source):
            return np.concatenate([*self._square_blocks(rows, codes)])
        left, zero = self.left(rows, codes), np.zeros((1, rows.n_columns))
        left.run(Assign(zero, want="labels"))
        return answer(left, Own(zero), "squares")

    def _square_blocks(self, rows: Source, codes: Codes) -> Iterator[F64]:
        for block in self._residuals(rows, codes).blocks(ROWS_PER_BLOCK):
            check_rows(block.rows, rows, np.arange(block.start, block.stop))
            left: Any = block.rows
            yield np.einsum("ij,ij->i", left, left, dtype=np.float64)

    def make_unique(self, rows: Rows, codes: Codes, beam: int) -> int:
        """Give every row a code of its own, in place; returns how many have another one than before."""
        return make_unique(self.plain(rows), codes, self.codebooks, beam)

    def refine(self, rows: Rows, codes: Codes, weights: F64 | None) -> None:
        """Least squares for one codebook after the other, given the codes and the other codebooks; in place."""
        for level, codebook in enumerate(self.codebooks):
            shard = self.left(rows, codes, weights)
            shard.run(TakeLabels(codes[:, level].astype(np.int32)))
            found = shard.run(SumByLabel(len(codebook)))
            means = found.sums / np.where(found.counts > 0, found.counts, 1.0)[:, None]
            self.codebooks[level] = np.asarray(codebook + means).astype(codebook.dtype)

    def errors(self, rows: Rows, codes: Codes, weights: F64 | None) -> F64:
        """Σ w ‖x − x̂‖² after every level."""
        return np.array([self._error(rows, codes[:, : level + 1], weights) for level in range(len(self.codebooks))])

    def _error(self, rows: Rows, codes: Codes, weights: F64 | None) -> float:
        if not isinstance(rows, Source):
            return self.left(rows, codes).run(Assign(np.zeros((1, rows.n_columns)))).objective
        total, begin = 0.0, 0
        for squares in self._square_blocks(rows, codes):
            part = slice(begin, begin := begin + len(squares))
            total += float(squares.sum() if weights is None else squares @ weights[part])
        return total

    def decode(self, codes: Any) -> Floats:
        """What codes stand for, of all levels or of the first ones."""
        checked: NDArray[Any] = np.asarray(codes)
        if checked.dtype.kind == "f" and (checked == np.rint(checked)).all():  # from a table of text
            checked = checked.astype(np.int64)
        if checked.ndim != 2 or checked.dtype.kind not in "iu" or not 1 <= checked.shape[1] <= len(self.sizes):
            raise ValueError(
                f"codes must be whole numbers of shape (n, {len(self.sizes)}), or of fewer levels; got "
                f"{checked.shape} of {checked.dtype}"
            )
        for level, column in enumerate(checked.T):
            if len(column) and not (column.min() >= 0 and column.max() < self.sizes[level]):
                raise ValueError(f"codes: level {level} has the numbers 0 to {self.sizes[level] - 1}, found others")
        shape, dtype = (len(checked), self.codebooks[0].shape[1]), self.codebooks[0].dtype
        check_allocation(shape[0] * shape[1] * dtype.itemsize, "the rows of all codes", "decode them in parts")
        out: Floats = np.zeros(shape, dtype)

        def add(span: tuple[int, int]) -> None:
            for codebook, column in zip(self.codebooks, checked[slice(*span)].T, strict=False):
                out[slice(*span)] += codebook[column]

        run_all(add, even_ranges(len(out), ROWS_AT_ONCE), self.n_threads, calls_blas=False)
        return out
