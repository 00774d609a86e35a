"""Sparse rows beside centres that are kept column by column: products, labels, votes.

All entries of a column lie side by side, so that a nonzero of a row meets all centres in one streak of memory, and a
vote touches as many numbers as the row has. A centre is a multiple of what is kept (its sum divided by its count), so
nothing else changes when it gains or loses a row. Everything is float64, so scores are distances up to rounding; where
a row is so close to centres that rounding might decide, differences over all columns do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.jit.memory import order_key
from globular.jit.vectors import LINE, add_1_line, add_2_lines, add_4_lines, add_8_lines
from globular.kernels.rows import CANCELLED, distance_by_columns, row_length
from globular.kernels.scores import rounding


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
    places: Any,  # IN  (D, width), whole lines
    factors: Any,  # IN  (C,)
    scores: Any,  # OUT (n, width) −2 x · factor · place
    lengths: Any,  # OUT (n,) ‖x‖
) -> None:
    """Products of sparse rows with all centres. O(nnz · width)."""
    n, width = scores.shape
    data, indices = rows[0], rows[1]
    for i in range(n):
        begin, end = rows[2][at[i]], rows[2][at[i] + 1]
        c = 0
        while c + 8 * LINE <= width:
            add_8_lines(data, indices, begin, end, places, c, scores, i)
            c += 8 * LINE
        if c + 4 * LINE <= width:
            add_4_lines(data, indices, begin, end, places, c, scores, i)
            c += 4 * LINE
        if c + 2 * LINE <= width:
            add_2_lines(data, indices, begin, end, places, c, scores, i)
            c += 2 * LINE
        if c + LINE <= width:
            add_1_line(data, indices, begin, end, places, c, scores, i)
        for c in range(factors.shape[0]):
            scores[i, c] *= -2.0 * factors[c]
        lengths[i] = row_length(rows, at[i])


@kernel
def closest_by_scores(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where each row lies in `rows`
    lengths: Any,  # IN  (n,) ‖x‖
    scales: Any,  # IN  (n,) or empty
    scores: Any,  # IN  (n, ≥ C) −2 x·m
    norms: Any,  # IN  (C,) ‖m‖²
    slack: float,  # IN  error of the norms
    places: Any,  # IN  (D, ≥ C)
    factors: Any,  # IN  (C,)
    best: Any,  # OUT (n,) no less than the squared distance to the closest centre
    labels: Any,  # OUT (n,) the closest centre, the lowest index on ties
) -> None:
    """Labels from scores. O(n · C), and O(D) for every centre in question where a row is close to its centre."""
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
        error = slack + rounding(rows, at[i], length + np.sqrt(norms[label]), scale, 0, 2.0**-53, 2.0**-1022)
        if squared < CANCELLED * norms[label]:
            limit, squared, error = squared + 4.0 * error, np.inf, 0.0
            for c in range(C):
                if length * length + (norms[c] + scale * scores[i, c]) <= limit:
                    distance = distance_by_columns(rows, at[i], scale, places.T, c, factors[c])
                    if distance < squared:
                        label, squared = c, distance
        labels[i], best[i] = label, squared + error


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
