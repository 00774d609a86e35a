"""Differences of some rows from the mean of a component: their lengths under its covariance, and moments about it.

Unless columns are many, differences have a line for every column, and products are loops along four of them: BLAS
would take a lock for each of them, at which many threads wait. (16 threads on rows of 16 columns were as slow as one.)
Otherwise they have a line for every row, which BLAS multiplies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline
from globular.jit.blas import add_symmetric, multiply_by_triangle

TILE, LINE = 128, 136
"""Rows whose differences are taken at once, and numbers from one line of them to the next: lines a power of two apart
would drive each other out of the cache."""
FEW_COLUMNS = 32
"""Most columns that have lines of their own."""


class Differences(NamedTuple):
    """Scratch of a thread for TILE rows."""

    by_row: Any  # (TILE, D), or (0, D) where columns are few
    by_column: Any  # (D, LINE) where they are, else (0, LINE)
    scaled: Any  # (TILE,) scratch
    values: Any  # (TILE,) squared lengths, or weights


def new_differences(n_columns: int) -> Differences:
    """Scratch for rows of so many columns."""
    few = n_columns <= FEW_COLUMNS
    by_row, by_column = np.empty((0 if few else TILE, n_columns)), np.empty((n_columns if few else 0, LINE))
    return Differences(by_row, by_column, *np.empty((2, TILE)))


@inline
def put_difference(differences: Any, k: int, d: int, value: float) -> None:
    """Column d of the k-th difference."""
    if differences.by_column.shape[0]:
        differences.by_column[d, k] = value
    else:
        differences.by_row[k, d] = value


@inline
def find_lengths(differences: Any, m: int, factors: Any, precisions: Any, c: int) -> None:
    """The values become (x − μ)ᵀ Σ⁻¹ (x − μ) of m differences, which may be gone after that. O(m·S).

    `factors` and `precisions` are of a `kernels.joint.Form`, of which nothing else is read.
    """
    lengths, last, whole = differences.values, precisions.shape[1] - 1, factors.shape[1] > 0
    for k in range(m):
        lengths[k] = 0.0
    if differences.by_column.shape[0]:
        D, lines, entry = differences.by_column.shape[0], differences.by_column, differences.scaled
        for d in range(D):
            if whole:
                for k in range(m):
                    entry[k] = 0.0
                for e in range(0, d + 1, 4):
                    # beyond the triangle the last line counts again, for nothing
                    f, g, h = min(e + 1, d), min(e + 2, d), min(e + 3, d)
                    one, two = factors[c, e * D + d], factors[c, f * D + d] if f > e else 0.0
                    three, four = factors[c, g * D + d] if g > f else 0.0, factors[c, h * D + d] if h > g else 0.0
                    for k in range(m):
                        entry[k] += (one * lines[e, k] + two * lines[f, k]) + (three * lines[g, k] + four * lines[h, k])
                for k in range(m):
                    lengths[k] += entry[k] * entry[k]
            else:
                factor = precisions[c, min(d, last)]
                for k in range(m):
                    lengths[k] += factor * lines[d, k] * lines[d, k]
        return
    away = differences.by_row
    if whole:
        multiply_by_triangle(factors, c, away, m)
    for k in range(m):
        total = 0.0
        for d in range(away.shape[1]):
            factor = 1.0 if whole else precisions[c, min(d, last)]
            total += factor * away[k, d] * away[k, d]
        lengths[k] = total


@inline
def add_moments(differences: Any, m: int, whole: bool, c: int, sums: Any, scatter: Any) -> None:
    """Add m differences, whose weights are the values, to the sums of a component and to its scatter. O(m·S).

    Of a `whole` matrix the upper triangle is written; the differences are gone after that.
    """
    weights, last = differences.values, scatter.shape[1] - 1
    if differences.by_column.shape[0]:
        D, lines, scaled = differences.by_column.shape[0], differences.by_column, differences.scaled
        for d in range(D):
            total = 0.0
            for k in range(m):
                scaled[k] = weights[k] * lines[d, k]
                total += scaled[k]
            sums[c, d] += total
            end = D if whole else d + 1
            for e in range(d, end, 4):
                f, g, h = min(e + 1, end - 1), min(e + 2, end - 1), min(e + 3, end - 1)
                one = two = three = four = 0.0
                for k in range(m):
                    one += scaled[k] * lines[e, k]
                    two += scaled[k] * lines[f, k]
                    three += scaled[k] * lines[g, k]
                    four += scaled[k] * lines[h, k]
                place = d * D if whole else min(d, last) - d
                scatter[c, place + e] += one
                if f > e:
                    scatter[c, place + f] += two
                if g > f:
                    scatter[c, place + g] += three
                if h > g:
                    scatter[c, place + h] += four
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
        add_symmetric(away, m, scatter, c)


@inline
def mirror(scatter: Any, D: int) -> None:
    """Whole matrices from the upper triangles that `add_moments` writes. O(C·D²)."""
    for c in range(scatter.shape[0]):
        for d in range(D):
            for e in range(d + 1, D):
                scatter[c, e * D + d] = scatter[c, d * D + e]
