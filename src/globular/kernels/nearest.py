"""Exact nearest centres from a matrix product, and sums per cluster.

The product of a block of rows with the centres gives scores ‖m‖² − 2 x·m in the rows' own precision, fast but rounded,
and rounded differently by every BLAS. A row's label must not depend on that. So scores only *nominate*: the lowest
score is checked in the exact difference form in float64, and so is every other centre whose score lies within the
rounding error of that result. On ordinary data that is hardly more than one exact distance a row, and labels come out
the same for any block, thread count, split or BLAS.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.jit.bits import float_bits
from globular.kernels.rows import multiply_csr_row, row_length, squared_distance

TILE = 64  # scores per running minimum: four AVX-512 registers of float32


@kernel
def csr_scores(
    rows: Any,  # IN  (data, indices, indptr)
    chosen: Any,  # IN  (m,) rows to multiply
    factors: Any,  # IN  (D, chunk) −2 mᵀ
    scores: Any,  # OUT (m, chunk)
) -> None:
    """scores = x · factors for the chosen rows. O(nnz · chunk)."""
    for row in range(scores.shape[0]):
        multiply_csr_row(rows, chosen[row], 1.0, factors, 0, scores[row])


@kernel
def thin_scores(
    x: Any,  # IN  (n, D) with few columns
    factors: Any,  # IN  (D, chunk)
    scores: Any,  # OUT (n, chunk)
) -> None:
    """scores = x · factors where D is too small for BLAS to pay: up to three columns at a time. O(n · D · chunk)."""
    n, D = x.shape
    chunk = factors.shape[1]
    for i in range(n):
        if D == 1:
            a = x[i, 0]
            for c in range(chunk):
                scores[i, c] = a * factors[0, c]
        elif D == 2:
            a, b = x[i, 0], x[i, 1]
            for c in range(chunk):
                scores[i, c] = a * factors[0, c] + b * factors[1, c]
        else:
            a, b, d = x[i, 0], x[i, 1], x[i, 2]
            for c in range(chunk):
                scores[i, c] = a * factors[0, c] + b * factors[1, c] + d * factors[2, c]
            for j in range(3, D):
                a = x[i, j]
                for c in range(chunk):
                    scores[i, c] += a * factors[j, c]


@inline
def tile_minima(
    scores: Any,  # IN  (n, chunk)
    i: int,  # IN  row
    score_norms: Any,  # IN  (chunk,)
    stretch: Any,  # IN  factor of this row's scores
    shift: Any,  # IN  ‖x − offset‖²: makes distances of scores, which are not negative
    keys: Any,  # OUT (chunk / TILE, rounded up) the lowest key of each tile
) -> None:
    """Running minima over one row of scores. The trip count of the inner loop is constant: it vectorises. O(chunk)."""
    chunk = scores.shape[1]
    full = chunk // TILE
    for t in range(full):
        first = t * TILE
        lowest = float_bits((score_norms[first] + shift) + stretch * scores[i, first])
        for c in range(TILE):
            key = float_bits((score_norms[first + c] + shift) + stretch * scores[i, first + c])
            lowest = key if key < lowest else lowest
        keys[t] = lowest
    if full * TILE < chunk:
        first = full * TILE
        lowest = float_bits((score_norms[first] + shift) + stretch * scores[i, first])
        for c in range(first, chunk):
            key = float_bits((score_norms[c] + shift) + stretch * scores[i, c])
            lowest = key if key < lowest else lowest
        keys[full] = lowest


@inline
def find_in_tile(
    scores: Any,  # IN  (n, chunk)
    i: int,  # IN  row
    score_norms: Any,  # IN  (chunk,)
    stretch: Any,  # IN
    shift: Any,  # IN
    tile: int,  # IN
    key: int,  # IN  one of the tile's keys
) -> int:
    """Position of a key in its tile; the last one if it occurs again. A maximum over integers: it vectorises."""
    first = tile * TILE
    position = -1
    if first + TILE <= scores.shape[1]:
        for c in range(TILE):
            here = float_bits((score_norms[first + c] + shift) + stretch * scores[i, first + c]) == key
            position = max(position, c if here else -1)
    else:
        for c in range(scores.shape[1] - first):
            here = float_bits((score_norms[first + c] + shift) + stretch * scores[i, first + c]) == key
            position = max(position, c if here else -1)
    return first + position


@inline
def count_in_tile(
    scores: Any,  # IN  (n, chunk)
    i: int,  # IN  row
    score_norms: Any,  # IN  (chunk,)
    stretch: Any,  # IN
    shift: Any,  # IN
    tile: int,  # IN
    limit: int,  # IN  a key
) -> int:
    """How many keys of a tile do not exceed the limit. It vectorises."""
    first = tile * TILE
    count = 0
    if first + TILE <= scores.shape[1]:
        for c in range(TILE):
            count += float_bits((score_norms[first + c] + shift) + stretch * scores[i, first + c]) <= limit
    else:
        for c in range(scores.shape[1] - first):
            count += float_bits((score_norms[first + c] + shift) + stretch * scores[i, first + c]) <= limit
    return count


@inline
def score_slack(
    length: float,  # IN  ‖x − offset‖
    reach: float,  # IN  no less than ‖m − offset‖
    scale: float,  # IN  factor of the row's scores
    n_columns: int,  # IN
    unit: float,  # IN  unit round-off of the scores' dtype
    tiny: float,  # IN  its smallest normal number
) -> float:
    """Rounding error of a score, of the conversion to its dtype included; products below `tiny` may count as zero."""
    return (2.0 * n_columns + 8.0) * (unit * length * reach + tiny * (1.0 + scale)) + 8.0 * unit * reach * reach


@inline
def scores_may_overflow(
    reach: float,  # IN  no less than ‖x − offset‖ and ‖m − offset‖
    scale: float,  # IN  factor of the row's scores
    tiny: float,  # IN  smallest normal number of the scores' dtype; its inverse is nearly the largest one
) -> bool:
    """Whether a score, or the factor, can leave the range of its dtype: such scores nominate nothing."""
    return not (4.0 * reach * reach * tiny < 1.0 and scale * tiny < 1.0)


@inline
def compare(
    rows: Any, row: int, scale: float, centers: Any, norms: Any, i: int, c: int, best: Any, labels: Any
) -> None:
    """Give the row to centre c if it is closer, or as close and of lower index; label −1 has no centre yet. O(D)."""
    squared = squared_distance(rows, row, scale, centers, c, norms)
    if labels[i] < 0 or squared < best[i] or (squared == best[i] and c < labels[i]):
        best[i] = squared
        labels[i] = c


@kernel
def check_all(
    rows: Any,  # IN
    i: int,  # IN  row
    scale: float,  # IN  its scale
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) float64
    first: int,  # IN  centres first … stop − 1 are compared
    stop: int,  # IN
    best: Any,  # IN/OUT (n,) squared distance to the closest centre so far
    labels: Any,  # IN/OUT (n,) its index
) -> None:
    """Lower one row by exact distances alone. O(D) or O(nnz) a centre."""
    for c in range(first, stop):
        compare(rows, i, scale, centers, norms, i, c, best, labels)


@kernel
def nominate_and_check(
    rows: Any,  # IN  the rows themselves
    lengths: Any,  # IN  (n,) ‖x − offset‖ of the rows that were multiplied
    scales: Any,  # IN  (n,) row scales or empty
    scores: Any,  # IN  (n, chunk) −2 x·(m − offset)
    score_norms: Any,  # IN  (chunk,) ‖m − offset‖² in the scores' dtype
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) ‖m‖² float64
    first: int,  # IN  index of the chunk's first centre
    unit: float,  # IN  unit round-off of the scores' dtype
    tiny: float,  # IN  its smallest normal number
    best: Any,  # IN/OUT (n,) squared distance to the closest centre so far
    labels: Any,  # IN/OUT (n,) its index; −1 if none yet
    keys: Any,  # scratch (≥ chunk / TILE,) integers as wide as a score
) -> None:
    """Lower `best` and `labels` by the centres of this chunk; ties go to the lowest index. O(n · chunk)."""
    n, chunk = scores.shape
    n_tiles = (chunk + TILE - 1) // TILE
    n_columns = centers.shape[1]
    for i in range(n):
        scale = scales[i] if scales.shape[0] else 1.0
        stretch = score_norms.dtype.type(scale)
        length = scale * lengths[i]
        shift = score_norms.dtype.type(length * length)
        tile_minima(scores, i, score_norms, stretch, shift, keys)
        lowest_tile = 0
        for t in range(1, n_tiles):
            if keys[t] < keys[lowest_tile]:
                lowest_tile = t

        if labels[i] < 0:
            # nothing to compare with yet: the lowest score gives the first exact distance
            c = find_in_tile(scores, i, score_norms, stretch, shift, lowest_tile, keys[lowest_tile])
            compare(rows, i, scale, centers, norms, i, first + c, best, labels)

        # A closer centre has ‖m‖ ≤ ‖x‖ + d, which bounds the rounding error of its score.
        reach = length + np.sqrt(best[i])
        if scores_may_overflow(reach, scale, tiny):
            check_all(rows, i, scale, centers, norms, first, first + chunk, best, labels)
            continue
        slack = score_slack(length, reach, scale, n_columns, unit, tiny)
        limit = float_bits(score_norms.dtype.type(best[i] + slack))
        for t in range(n_tiles):
            if keys[t] > limit:
                continue
            own = labels[i] - first
            here = 0 <= own - t * TILE < TILE and own < chunk
            if here and count_in_tile(scores, i, score_norms, stretch, shift, t, limit) <= 1:
                continue  # nothing there but the row's own centre
            for c in range(t * TILE, min(chunk, (t + 1) * TILE)):
                if float_bits((score_norms[c] + shift) + stretch * scores[i, c]) > limit or first + c == labels[i]:
                    continue
                distance = squared_distance(rows, i, scale, centers, first + c, norms)
                if distance < best[i] or (distance == best[i] and first + c < labels[i]):
                    best[i] = distance
                    labels[i] = first + c
                    reach = length + np.sqrt(distance)
                    slack = score_slack(length, reach, scale, n_columns, unit, tiny)
                    limit = float_bits(score_norms.dtype.type(distance + slack))


@kernel
def row_lengths(
    rows: Any,  # IN
    out: Any,  # OUT (n,) ‖x‖
) -> None:
    """Euclidean length of every row. O(n · D)."""
    for i in range(out.shape[0]):
        out[i] = row_length(rows, i)


@kernel
def own_distances(
    rows: Any,  # IN
    scales: Any,  # IN  (n,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) float64
    labels: Any,  # IN  (n,)
    out: Any,  # OUT (n,) ‖x − m_label‖²
) -> None:
    """Squared distance of every row to the centre of its label. O(n · D)."""
    for i in range(labels.shape[0]):
        scale = scales[i] if scales.shape[0] else 1.0
        out[i] = squared_distance(rows, i, scale, centers, labels[i], norms)
