"""Centres of sparse rows, column by column, and the votes that move them at the cost of the votes alone.

A batch of sparse rows has fewer numbers than the centres have entries, so an M-step that writes all centres anew costs
more than finding the labels. Here a centre is kept as its sum S(j) beside a factor 1 / v(j): a vote changes as many
entries as the row has. ‖S(j)‖² and how far the centre moved follow from what the votes add:

    ‖S + Δ‖² = ‖S‖² + gain,   S · Δ = product,   ‖Δ‖² = gain − 2 product,
    p² = (f' − f)² ‖S‖² + 2 f' (f' − f) S · Δ + f'² ‖Δ‖²   for a centre that goes from f S to f' (S + Δ).

The length is summed anew when the rounding errors of many gains might be felt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from globular.jit import inline, kernel
from globular.jit.instructions import CACHE_LINE
from globular.jit.vectors import LINE
from globular.model.statistics import F64, I64
from globular.threads import even_ranges, ordered_map

COLUMNS_PER_TASK = 4096
COLUMN_PARTS, ROWS_WORTH_PARTS = 2, 256  # parts of the columns that sums are made in, and rows from which they are
NORM_SHARE = 1e-9  # share of ‖S‖² that rounding may spoil before it is summed anew; far below what bounds give way


@kernel
def transpose_centers(
    centers: Any,  # IN  (C, D)
    begin: int,  # IN  columns begin … end − 1
    end: int,  # IN
    places: Any,  # OUT (D, ≥ C); further entries are left as they are
    squares: Any,  # OUT (C,) the squared length of these columns
) -> None:
    """Centres column by column. O(C · columns)."""
    squares[:] = 0.0
    for first in range(begin, end, 8):
        for c in range(centers.shape[0]):
            for j in range(first, min(first + 8, end)):
                squares[c] += centers[c, j] * centers[c, j]
                places[j, c] = centers[c, j]


@kernel
def transpose_back(
    places: Any,  # IN  (D, ≥ C)
    factors: Any,  # IN  (C,)
    out: Any,  # OUT (C, D)
) -> None:
    """factor · place of every centre, one after the other. O(C · D)."""
    C, D = out.shape
    for first in range(0, D, 8):
        for c in range(C):
            for j in range(first, min(first + 8, D)):
                out[c, j] = factors[c] * places[j, c]


@kernel
def sum_squares(
    places: Any,  # IN  (D, ≥ C)
    begin: int,  # IN  columns begin … end − 1
    end: int,  # IN
    squares: Any,  # OUT (C,)
) -> None:
    """The squared length of these columns. O(C · columns)."""
    squares[:] = 0.0
    for j in range(begin, end):
        for c in range(squares.shape[0]):
            squares[c] += places[j, c] * places[j, c]


@inline
def first_from(indices: Any, begin: int, end: int, column: int) -> int:
    """Where, among the sorted entries begin … end − 1, those of this column and the later ones begin."""
    while begin < end:
        middle = (begin + end) // 2
        if indices[middle] < column:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def cast_ballots(
    rows: Any,  # IN
    at: Any,  # IN  (n,) which rows
    labels: Any,  # IN  (n,) the clusters that they join or leave
    factors: Any,  # IN  (n,) ± w s
    void: Any,  # IN  (C,) clusters that take no votes now
    first: int,  # IN  columns first … last − 1
    last: int,  # IN
    places: Any,  # IN/OUT (D, ≥ C) the sums
    gains: Any,  # OUT (C,) what their squared lengths gain
    errors: Any,  # OUT (C,) by how much rounding may have spoilt that
) -> None:
    """Add rows to the sums of their clusters, in some columns. O(nnz)."""
    gains[:] = 0.0
    errors[:] = 0.0
    for i in range(at.shape[0]):
        c = labels[i]
        if void[c]:
            continue
        begin, end = rows[2][at[i]], rows[2][at[i] + 1]
        gain, size = 0.0, 0.0
        for k in range(first_from(rows[1], begin, end, first), first_from(rows[1], begin, end, last)):
            j = rows[1][k]
            step, old = factors[i] * rows[0][k], places[j, c]
            places[j, c] = old + step
            gain += step * (2.0 * old + step)
            reach = abs(old) + abs(step)
            size += reach * reach
        gains[c] += gain
        errors[c] += (end - begin + 8.0) * 2.0**-52 * size


class Ballots(NamedTuple):
    """Changes of sums, as the rows that make them; no row is copied."""

    rows: tuple[Any, ...]
    """(data, indices, indptr) of a shard."""
    at: I64
    """Which of them."""
    labels: NDArray[np.int32]
    """The clusters that they join or leave."""
    factors: F64
    """± w s."""
    products: F64
    """± Σ w s x · m per cluster, with the centres as they were, (C,)."""


@dataclass(slots=True)
class ColumnMeans:
    """k centres: `factors` times the columns of `places`."""

    places: F64
    """(D, ≥ k), padded with zeros to whole lines."""
    factors: F64
    squares: F64
    """‖place‖², (k,)."""
    errors: F64
    """How much of the squares rounding may have spoilt, (k,)."""

    @classmethod
    def of(cls, centers: F64, n_threads: int = 1) -> ColumnMeans:
        k, D = centers.shape
        places = aligned_zeros((D, -(-k // LINE) * LINE), np.float64)

        def transpose(span: tuple[int, int]) -> F64:
            squares = np.empty(k)
            transpose_centers(centers, *span, places, squares)
            return squares

        squares = sum(ordered_map(transpose, even_ranges(D, COLUMNS_PER_TASK), n_threads), np.zeros(k))
        return cls(places, np.ones(k), squares, np.zeros(k))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.factors), len(self.places)

    @property
    def norms(self) -> F64:
        """‖m‖², (k,)."""
        return self.factors * self.factors * self.squares

    @property
    def norm_share(self) -> float:
        """Relative error of the norms, at most."""
        return max(NORM_SHARE, len(self.places) * 2.0**-50)

    def times(self, factors: F64) -> F64:
        """What is kept of every centre, times these, (k, D)."""
        out = np.empty(self.shape)
        transpose_back(self.places, factors, out)
        return out

    def place(self, clusters: NDArray[np.intp], rows: F64) -> None:
        """Put centres at these rows."""
        self.places[:, clusters] = rows.T
        self.factors[clusters] = 1.0
        self.squares[clusters] = np.einsum("ij,ij->i", rows, rows)
        self.errors[clusters] = 0.0

    def add(self, ballots: Ballots, void: NDArray[np.bool_], n_threads: int = 1) -> F64:
        """Add rows to the sums, each thread in its own columns; returns the gains of ‖S‖²."""
        k, D = self.shape
        n_parts = COLUMN_PARTS if len(ballots.at) >= ROWS_WORTH_PARTS else 1

        def cast(columns: tuple[int, int]) -> tuple[F64, F64]:
            gains, errors = np.empty(k), np.empty(k)
            cast_ballots(
                ballots.rows, ballots.at, ballots.labels, ballots.factors, void, *columns, self.places, gains, errors
            )  # fmt: skip
            return gains, errors

        gains = np.zeros(k)
        for gain, errors in ordered_map(cast, even_ranges(D, -(-D // n_parts)), n_threads):
            gains += gain
            self.errors += errors
        self.squares += gains
        if (self.errors > self.norm_share * self.squares).any():
            sum_squares(self.places, 0, D, self.squares)
            self.errors[:] = 0.0
        return gains


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros that begin with a cache line: no vector of a tile, and no `LINE`, then lies across two of them."""
    n = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(n + CACHE_LINE, dtype=np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + n].view(dtype).reshape(shape)
