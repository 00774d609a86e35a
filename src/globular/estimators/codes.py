"""Codebooks, and what they say of rows: codes by a beam, rows from codes, errors; and codebooks from codes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.kmeans.residual import Encode, best_codes, make_unique, rows_per_block
from globular.data.blocks import Source
from globular.data.residuals import ROWS_AT_ONCE, Codes, Residuals
from globular.data.sources import ArraySource, check_rows
from globular.estimators.checks import check_allocation
from globular.model.statistics import F64, I64, Floats
from globular.passes.registry import shard_over
from globular.seam.passes import SumByLabel
from globular.threads import even_ranges, run_all

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

    def left(self, rows: Source, codes: Codes) -> Residuals:
        """What the codes leave of the rows."""
        return Residuals(rows, codes, self.codebooks, unit_rows=self.unit_rows, n_threads=self.n_threads)

    def plain(self, rows: Source) -> Residuals:
        """The rows as codes describe them: in the working type, and of unit length if the metric is the cosine."""
        none: Codes = np.empty((rows.n_rows, 0), dtype=np.uint8)
        return Residuals(rows, none, (), unit_rows=self.unit_rows, n_threads=self.n_threads)

    def encode(self, rows: Source, beam: int, old: Codes | None = None) -> Codes:
        """The codes of all rows, block by block; those that they have already stay where they are no worse."""
        codes: Codes = np.empty((rows.n_rows, len(self.sizes)), dtype=np.min_scalar_type(max(self.sizes) - 1))
        for block in self.plain(rows).blocks(rows_per_block(rows.n_columns, self.sizes, beam)):
            check_rows(block.rows, rows, np.arange(block.start, block.stop))
            part = slice(block.start, block.stop)
            codes[part] = self._best(block.rows, beam, 1)[:, 0]
            if old is not None:
                better = self._squares(block.rows, codes[part]) < self._squares(block.rows, old[part])
                codes[part] = np.where(better[:, None], codes[part], old[part])
        return codes

    def _best(self, rows: Any, beam: int, n_codes: int) -> I64:
        return best_codes(partial(shard_over, n_threads=self.n_threads), rows, self.codebooks, beam, n_codes)

    def _squares(self, rows: Any, codes: Codes) -> F64:
        """How far rows, plain ones, are from what their codes stand for."""
        left: Any = Residuals(ArraySource(rows), codes, self.codebooks, n_threads=self.n_threads).whole()
        return np.asarray(np.einsum("ij,ij->i", left, left, dtype=np.float64))

    def make_unique(self, rows: Source, codes: Codes, beam: int) -> int:
        """Give every row a code of its own, in place; returns how many have another one than before."""
        plain = self.plain(rows)
        best: Encode = lambda some, beam, n_codes: self._best(plain.take(some), beam, n_codes)  # noqa: E731
        return make_unique(codes, self.sizes, rows.n_columns, beam, best)

    def refine(self, rows: Source, codes: Codes, weights: F64 | None) -> None:
        """Least squares for one codebook after the other, given the codes and the other codebooks; in place."""
        for level, codebook in enumerate(self.codebooks):
            shard = shard_over(self.left(rows, codes), weights, n_threads=self.n_threads)
            shard.labels[:] = codes[:, level]
            found = shard.run(SumByLabel(len(codebook)))
            means = found.sums / np.where(found.counts > 0, found.counts, 1.0)[:, None]
            self.codebooks[level] = (codebook + means).astype(codebook.dtype)

    def errors(self, rows: Source, codes: Codes, weights: F64 | None) -> F64:
        """Σ w ‖x − x̂‖² after every level."""
        totals = np.zeros(len(self.codebooks))
        for block in self.plain(rows).blocks(ROWS_PER_BLOCK):
            part = slice(block.start, block.stop)
            for level in range(len(totals)):
                squares = self._squares(block.rows, codes[part, : level + 1])
                totals[level] += squares.sum() if weights is None else squares @ weights[part]
        return totals

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
