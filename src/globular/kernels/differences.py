"""Differences of some rows from the mean of a component: their lengths under its covariance, and moments about it.

Unless columns are many, differences have a line for every column, and products are loops along four of them: BLAS
would take a lock for each of them, at which many threads wait. (16 threads on rows of 16 columns were as slow as one.)
Otherwise they have a line for every row, which BLAS multiplies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.kernels.blas import add_symmetric, multiply_by_triangle
from globular.kernels.compile import inline

TILE, LINE = 128, 136
"""Rows whose differences are taken at once, and numbers from one line of them to the next: lines a power of two apart
would drive each other out of the cache."""
FEW_COLUMNS = 32
"""Most columns that have lines of their own."""


class Differences(NamedTuple):
    """Scratch of a thread for TILE rows."""

    by_row: Any  # (TILE, D), or (0, D) where columns are few
    by_column: Any  # (D, LINE) where they are, else (0, LINE)
    scaled: Any  # (2, TILE) scratch
    values: Any  # (TILE,) squared lengths, or weights


def new_differences(n_columns: int) -> Differences:
    """Scratch for rows of so many columns."""
    few = n_columns <= FEW_COLUMNS
    by_row, by_column = np.empty((0 if few else TILE, n_columns)), np.empty((n_columns if few else 0, LINE))
    return Differences(by_row, by_column, np.empty((2, TILE)), np.empty(TILE))


@inline
def put_difference(differences: Any, k: int, d: int, value: float) -> None:
    """Column d of the k-th difference."""
    if differences.by_column.shape[0]:
        differences.by_column[d, k] = value
    else:
        differences.by_row[k, d] = value


@inline
def find_entries(lines: Any, m: int, factors: Any, c: int, d: int, entries: Any) -> None:
    """Entries d and d + 1 of U(x − μ) of m differences, of which a line is read once for both. O(m·d).

    Lines beyond the last one are the last one again, for nothing. Below the diagonal U has zeros.
    """
    D = lines.shape[0]
    both = min(d + 1, D - 1)
    other = 1.0 if both > d else 0.0
    for k in range(m):
        entries[0, k] = entries[1, k] = 0.0
    for e in range(0, both + 1, 4):
        f, g, h = min(e + 1, D - 1), min(e + 2, D - 1), min(e + 3, D - 1)
        on_f, on_g, on_h = 1.0 if f > e else 0.0, 1.0 if g > f else 0.0, 1.0 if h > g else 0.0
        e0, e1 = factors[c, e * D + d], other * factors[c, e * D + both]
        f0, f1 = on_f * factors[c, f * D + d], other * on_f * factors[c, f * D + both]
        g0, g1 = on_g * factors[c, g * D + d], other * on_g * factors[c, g * D + both]
        h0, h1 = on_h * factors[c, h * D + d], other * on_h * factors[c, h * D + both]
        for k in range(m):
            entries[0, k] += (e0 * lines[e, k] + f0 * lines[f, k]) + (g0 * lines[g, k] + h0 * lines[h, k])
            entries[1, k] += (e1 * lines[e, k] + f1 * lines[f, k]) + (g1 * lines[g, k] + h1 * lines[h, k])


@inline
def add_products(lines: Any, m: int, scaled: Any, c: int, d: int, scatter: Any) -> None:
    """Add rows d and d + 1 of the matrix of m differences, from the diagonal on: `scaled` times every line. O(m·D).

    What is left of the diagonal may be written; `mirror` writes it again.
    """
    D = lines.shape[0]
    both = min(d + 1, D - 1)
    for e in range(d, D, 4):
        f, g, h = min(e + 1, D - 1), min(e + 2, D - 1), min(e + 3, D - 1)
        e0 = f0 = g0 = h0 = e1 = f1 = g1 = h1 = 0.0
        for k in range(m):
            e0 += scaled[0, k] * lines[e, k]
            f0 += scaled[0, k] * lines[f, k]
            g0 += scaled[0, k] * lines[g, k]
            h0 += scaled[0, k] * lines[h, k]
            e1 += scaled[1, k] * lines[e, k]
            f1 += scaled[1, k] * lines[f, k]
            g1 += scaled[1, k] * lines[g, k]
            h1 += scaled[1, k] * lines[h, k]
        first, second = d * D, both * D
        add_four(scatter, c, first, e, f, g, h, e0, f0, g0, h0)
        if both > d:
            add_four(scatter, c, second, e, f, g, h, e1, f1, g1, h1)


@inline
def add_four(
    scatter: Any, c: int, row: int, e: int, f: int, g: int, h: int, one: float, two: float, three: float, four: float
) -> None:
    """Add to some entries of a row, to each once."""
    scatter[c, row + e] += one
    if f > e:
        scatter[c, row + f] += two
    if g > f:
        scatter[c, row + g] += three
    if h > g:
        scatter[c, row + h] += four


@inline
def find_lengths(differences: Any, m: int, factors: Any, precisions: Any, triangular: int, c: int) -> None:
    """The values become (x − μ)ᵀ Σ⁻¹ (x − μ) of m differences, which may be gone after that. O(m·S).

    `factors`, `precisions` and `triangular` are of a `kernels.joint.Form`, of which nothing else is read.
    """
    lengths, last, whole = differences.values, precisions.shape[1] - 1, factors.shape[1] > 0
    for k in range(m):
        lengths[k] = 0.0
    if differences.by_column.shape[0]:
        D, lines, entries = differences.by_column.shape[0], differences.by_column, differences.scaled
        for d in range(0, D, 2 if whole else 1):
            if whole:
                find_entries(lines, m, factors, c, d, entries)
                for k in range(m):
                    lengths[k] += entries[0, k] * entries[0, k] + entries[1, k] * entries[1, k]
            else:
                factor = precisions[c, min(d, last)]
                for k in range(m):
                    lengths[k] += factor * lines[d, k] * lines[d, k]
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
        D, lines, scaled = differences.by_column.shape[0], differences.by_column, differences.scaled
        for d in range(0, D, 2):
            both = min(d + 1, D - 1)
            first = second = 0.0
            for k in range(m):
                scaled[0, k], scaled[1, k] = weights[k] * lines[d, k], weights[k] * lines[both, k]
                first += scaled[0, k]
                second += scaled[1, k]
            sums[c, d] += first
            if both > d:
                sums[c, both] += second
            if whole:
                add_products(lines, m, scaled, c, d, scatter)
            else:
                first = second = 0.0
                for k in range(m):
                    first += scaled[0, k] * lines[d, k]
                    second += scaled[1, k] * lines[both, k]
                scatter[c, min(d, last)] += first
                if both > d:
                    scatter[c, min(both, last)] += second
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
