"""Sparse rows beside centres that are kept column by column: products, labels, votes.

All entries of a column lie side by side, so that a nonzero of a row meets all centres in one streak of memory, and a
vote touches as many numbers as the row has. A centre is a multiple of what is kept (its sum divided by its count), so
nothing else changes when it gains or loses a row. Everything is float64: scores are exact distances, up to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import inline, kernel
from globular.kernels.nested import SAFETY, rounding, stored_lower, stored_upper
from globular.kernels.rows import order_key, squared_norm

UNIT, TINY = 2.0**-53, 2.0**-1022
"""Round-off and smallest normal number of float64."""


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


@kernel
def column_scores(
    rows: Any,  # IN  (data, indices, indptr)
    at: Any,  # IN  (n,) which rows
    places: Any,  # IN  (D, width) whole vectors are the fastest
    factors: Any,  # IN  (C,)
    scores: Any,  # OUT (n, width) −2 x · factor · place
    lengths: Any,  # OUT (n,) ‖x‖
) -> None:
    """Products of sparse rows with all centres, four entries at a time. O(nnz · width)."""
    n, width = scores.shape
    data, indices = rows[0], rows[1]
    for i in range(n):
        k, end = rows[2][at[i]], rows[2][at[i] + 1]
        for c in range(width):
            scores[i, c] = 0.0
        while k + 4 <= end:
            v0, v1 = np.float64(data[k]), np.float64(data[k + 1])
            v2, v3 = np.float64(data[k + 2]), np.float64(data[k + 3])
            j0, j1, j2, j3 = indices[k], indices[k + 1], indices[k + 2], indices[k + 3]
            for c in range(width):
                scores[i, c] += (v0 * places[j0, c] + v1 * places[j1, c]) + (v2 * places[j2, c] + v3 * places[j3, c])
            k += 4
        while k < end:
            v0, j0 = np.float64(data[k]), indices[k]
            for c in range(width):
                scores[i, c] += v0 * places[j0, c]
            k += 1
        for c in range(factors.shape[0]):
            scores[i, c] *= -2.0 * factors[c]
        lengths[i] = np.sqrt(squared_norm(rows, at[i]))


@kernel
def closest_by_scores(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where each row lies in `rows`
    lengths: Any,  # IN  (n,) ‖x‖
    scales: Any,  # IN  (n,) or empty
    scores: Any,  # IN  (n, ≥ C) −2 x·m
    norms: Any,  # IN  (C,) ‖m‖²
    slack: float,  # IN  error of the norms
    best: Any,  # OUT (n,) no less than the squared distance to the closest centre
    labels: Any,  # OUT (n,) the closest centre, the lowest index on ties
) -> None:
    """Labels from scores. O(n · C)."""
    C = norms.shape[0]
    for i in range(lengths.shape[0]):
        scale = scales[i] if scales.shape[0] else 1.0
        length = scale * lengths[i]
        lowest = order_key(norms[0] + scale * scores[i, 0])
        for c in range(1, C):
            key = order_key(norms[c] + scale * scores[i, c])
            lowest = key if key < lowest else lowest
        label = C
        for c in range(C):
            here = order_key(norms[c] + scale * scores[i, c]) == lowest
            label = min(label, c if here else C)
        squared = max(length * length + (norms[label] + scale * scores[i, label]), 0.0)
        error = slack + rounding(rows, at[i], length + np.sqrt(norms[label]), scale, 0, UNIT, TINY)
        labels[i], best[i] = label, squared + error


@inline
def product_with(rows: Any, i: int, places: Any, c: int) -> float:
    """x · place of one centre. O(nnz)."""
    total = 0.0
    for k in range(rows[2][i], rows[2][i + 1]):
        total += rows[0][k] * places[rows[1][k], c]
    return total


@kernel
def search_few_columns(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where each row lies in `rows`
    scales: Any,  # IN  (N,) or empty
    chosen: Any,  # IN  (n,) rows of the shard
    active: Any,  # IN  (m,) positions to look at
    places: Any,  # IN  (D, ≥ C)
    factors: Any,  # IN  (C,)
    norms: Any,  # IN  (C,) ‖m‖²
    slack: float,  # IN  error of the norms
    order: Any,  # IN  (C,) centres sorted by group
    starts: Any,  # IN  (groups + 1,)
    group_of: Any,  # IN  (C,)
    drift: Any,  # IN  (C,)
    group_drift: Any,  # IN  (groups,)
    most: int,  # IN  rows with more candidates than this are left to the product
    upper: Any,  # IN/OUT (N,)
    lower: Any,  # IN/OUT (N, groups)
    labels: Any,  # IN/OUT (n,) −1: not seen before
    own: Any,  # OUT (n,) x · m with the new centre, of rows that change it
    former: Any,  # OUT (n,) the same with the old centre
    lengths: Any,  # OUT (n,) ‖x‖
    wide: Any,  # OUT (m,) positions left to the product
) -> tuple[int, int]:
    """Alg. 1 for sparse rows with few candidates; how many are left, and distances computed. O(nnz) a distance.

    The product adds in another order, so a row that rounding might decide is left to it: labels stay the same.
    """
    n_groups = group_drift.shape[0]
    n_wide, n_distances = 0, 0
    for position in range(active.shape[0]):
        i = active[position]
        r, c = chosen[i], labels[i]
        doubtful, n_here = c < 0, 0
        if not doubtful:  # the own distance rules some more out, but not many times more
            limit, n_candidates = upper[r] + drift[c], 0
            for g in range(n_groups):
                n_candidates += starts[g + 1] - starts[g] if lower[r, g] - group_drift[g] <= limit else 0
            doubtful = n_candidates > 4 * most
        if not doubtful:
            scale = scales[r] if scales.shape[0] else 1.0
            lengths[i] = np.sqrt(squared_norm(rows, at[i]))
            length = scale * lengths[i]
            former[i] = factors[c] * product_with(rows, at[i], places, c)
            own[i], label = former[i], c
            best = length * length - 2.0 * scale * own[i] + norms[c]
            reach = length + np.sqrt(norms[c])
            error = slack + rounding(rows, at[i], reach, scale, 0, UNIT, TINY)
            limit = np.sqrt(max(best, 0.0) + error) * (1.0 + SAFETY)
            n_here = 1
            n_candidates = 0
            for g in range(n_groups):
                n_candidates += starts[g + 1] - starts[g] if lower[r, g] - group_drift[g] <= limit else 0
            doubtful = n_candidates > most
            for g in range(0 if doubtful or n_candidates == 0 else n_groups):
                if lower[r, g] - group_drift[g] > limit:
                    continue
                other = np.inf
                for k in range(starts[g], starts[g + 1]):
                    m = order[k]
                    if m == label:
                        continue
                    product = factors[m] * product_with(rows, at[i], places, m)
                    squared = length * length - 2.0 * scale * product + norms[m]
                    n_here += 1
                    reach = max(reach, length + np.sqrt(norms[m]))
                    error = slack + rounding(rows, at[i], reach, scale, 0, UNIT, TINY)
                    doubtful |= abs(squared - best) <= 4.0 * error
                    if squared < best:
                        below = np.sqrt(max(best - error, 0.0))  # the old centre is one of the others now
                        if group_of[label] == g:
                            other = min(other, below)
                        else:
                            old = group_of[label]
                            lower[r, old] = min(lower[r, old], stored_lower(below, group_drift[old]))
                        best, label, own[i] = squared, m, product
                        limit = np.sqrt(max(best, 0.0) + error) * (1.0 + SAFETY)
                    else:
                        other = min(other, np.sqrt(max(squared - error, 0.0)))
                lower[r, g] = stored_lower(other, group_drift[g])
        if doubtful:
            wide[n_wide] = i
            n_wide += 1
        else:
            n_distances += n_here
            labels[i] = label
            upper[r] = stored_upper(np.sqrt(max(best, 0.0) + error), drift[label])
    return n_wide, n_distances


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
        errors[c] += (end - begin + 8.0) * 2.0 * UNIT * size
