"""Centres of sparse rows, column by column, and the votes that move them at the cost of the votes alone.

A batch of sparse rows has fewer numbers than the centres have entries, so an M-step that writes all centres anew costs
more than finding the labels. Here a centre is kept as its sum S(j) beside a factor 1 / v(j): a vote changes as many
entries as the row has. ‖S(j)‖² and how far the centre moved follow from what the votes add:

    ‖S + Δ‖² = ‖S‖² + gain,   S · Δ = product,   ‖Δ‖² = gain − 2 product,
    p² = (f' − f)² ‖S‖² + 2 f' (f' − f) S · Δ + f'² ‖Δ‖²   for a centre that goes from f S to f' (S + Δ).

The length is summed anew when the rounding errors of many gains might be felt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.model.statistics import F64, I64, Floats

LINES_AT_ONCE = 16
"""Columns that are made rows at once: enough to fill lines of the cache, few enough to stay in it."""
NORM_SHARE = 1e-9  # share of ‖S‖² that rounding may spoil before it is summed anew; far below what bounds give way


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
        return np.asarray(self.times_as(np.dtype(np.float64), factors), dtype=np.float64)

    def times_as(self, dtype: np.dtype, factors: F64) -> Floats:
        """The same in another precision."""
        out: Floats = np.empty(self.shape, dtype=dtype)
        for j in range(0, len(self.places), LINES_AT_ONCE):
            some = slice(j, j + LINES_AT_ONCE)
            np.multiply(self.places[some, : len(factors)].T, factors[:, None], out=out[:, some], casting="same_kind")
        return out

    def place(self, clusters: NDArray[np.intp], rows: F64) -> None:
        """Put centres at these rows."""
        self.places[:, clusters] = rows.T
        self.factors[clusters] = 1.0
        self.squares[clusters] = np.einsum("ij,ij->i", rows, rows)
        self.errors[clusters] = 0.0
