"""Differences of some rows from the mean of a component: their lengths under its covariance, and moments about it.

Where columns are few, differences have a line for every column, and products are loops along it: BLAS would take a lock
for each of them, at which many threads wait. Otherwise they have a line for every row, which BLAS multiplies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.kernels.blas import add_symmetric, multiply_by_triangle
from globular.kernels.compile import inline

TILE = 128
"""Rows whose differences are taken at once."""
FEW_COLUMNS = 12
"""Most columns that have lines of their own."""


class Differences(NamedTuple):
    """Scratch of a thread for TILE rows."""

    by_row: Any  # (TILE, D), or (0, D) where columns are few
    by_column: Any  # (D, TILE) where they are, else (0, TILE)
    scaled: Any  # (TILE,) scratch
    values: Any  # (TILE,) squared lengths, or weights


def new_differences(n_columns: int) -> Differences:
    """Scratch for rows of so many columns."""
    few = n_columns <= FEW_COLUMNS
    by_row, by_column = np.empty((0 if few else TILE, n_columns)), np.empty((n_columns if few else 0, TILE))
    return Differences(by_row, by_column, *np.empty((2, TILE)))


@inline
def put_difference(differences: Any, k: int, d: int, value: float) -> None:
    """Column d of the k-th difference."""
    if differences.by_column.shape[0]:
        differences.by_column[d, k] = value
    else:
        differences.by_row[k, d] = value


@inline
def find_lengths(differences: Any, m: int, factors: Any, precisions: Any, triangular: int, c: int) -> None:
    """The values become (x − μ)ᵀ Σ⁻¹ (x − μ) of m differences, which may be gone after that. O(m·S).

    `factors`, `precisions` and `triangular` are of a `kernels.joint.Form`, of which nothing else is read.
    """
    lengths, last, whole = differences.values, precisions.shape[1] - 1, factors.shape[1] > 0
    for k in range(m):
        lengths[k] = 0.0
    if differences.by_column.shape[0]:
        D, entry = differences.by_column.shape[0], differences.scaled
        for d in range(D):
            if whole:
                for k in range(m):
                    entry[k] = 0.0
                for e in range(d + 1):
                    factor, line = factors[c, e * D + d], differences.by_column[e]
                    for k in range(m):
                        entry[k] += factor * line[k]
                for k in range(m):
                    lengths[k] += entry[k] * entry[k]
            else:
                factor, line = precisions[c, min(d, last)], differences.by_column[d]
                for k in range(m):
                    lengths[k] += factor * line[k] * line[k]
        return
    away = differences.by_row
    if whole:
        multiply_by_triangle(triangular, factors, c, away, m)
    for k in range(m):
        total = 0.0
        for d in range(away.shape[1]):
            factor = 1.0 if whole else precisions[c, min(d, last)]
            total += factor * away[k, d] * away[k, d]
        lengths[k] = total


@inline
def add_moments(differences: Any, m: int, whole: bool, symmetric: int, c: int, sums: Any, scatter: Any) -> None:
    """Add m differences, whose weights are the values, to the sums of a component and to its scatter. O(m·S).

    Of a `whole` matrix the upper triangle is written; the differences are gone after that.
    """
    weights, last = differences.values, scatter.shape[1] - 1
    if differences.by_column.shape[0]:
        D, scaled = differences.by_column.shape[0], differences.scaled
        for d in range(D):
            line, total = differences.by_column[d], 0.0
            for k in range(m):
                scaled[k] = weights[k] * line[k]
                total += scaled[k]
            sums[c, d] += total
            for e in range(d, D if whole else d + 1):
                other, total = differences.by_column[e], 0.0
                for k in range(m):
                    total += scaled[k] * other[k]
                scatter[c, d * D + e if whole else min(d, last)] += total
        return
    away = differences.by_row
    for k in range(m):
        root = np.sqrt(weights[k])
        for d in range(away.shape[1]):
            sums[c, d] += weights[k] * away[k, d]
            away[k, d] *= root
            if not whole:
                scatter[c, min(d, last)] += away[k, d] * away[k, d]
    if whole:
        add_symmetric(symmetric, away, m, scatter, c)


@inline
def mirror(scatter: Any, D: int) -> None:
    """Whole matrices from the upper triangles that `add_moments` writes. O(C·D²)."""
    for c in range(scatter.shape[0]):
        for d in range(D):
            for e in range(d + 1, D):
                scatter[c, e * D + d] = scatter[c, d * D + e]
