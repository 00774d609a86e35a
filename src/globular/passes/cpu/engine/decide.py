"""The closest centre of every row of a block, exactly, from scores that are fast but rounded.

A row's label must not depend on BLAS, on the size of blocks or on their order. So scores only *nominate*: the centre of
the lowest score is measured in the exact difference form in float64, and so is every other one whose score lies within
the rounding error of the result. On ordinary data that is hardly more than one exact distance a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.jit.memory import as_matrix, float_bits
from globular.passes.cpu.engine.rows import squared_distance

TILE = 64
"""Scores whose lowest is kept: four AVX-512 registers of float32."""
STATE = 3
"""Numbers that a row in a lane has before its columns: a score, the lowest one and the second lowest."""


@inline
def insert(cost: Any, c: int, costs: Any, found: Any, n_kept: int) -> int:
    """Keep the lowest costs of a row in order, of equal ones the first; returns how many are kept. O(their number)."""
    n = costs.shape[0]
    if n_kept == n and cost >= costs[n - 1]:
        return n_kept
    position = min(n_kept, n - 1)
    while position > 0 and costs[position - 1] > cost:
        costs[position], found[position] = costs[position - 1], found[position - 1]
        position -= 1
    costs[position], found[position] = cost, c
    return min(n_kept + 1, n)


@inline
def key_of(scores: Any, k: int, c: int, norms: Any, stretch: Any, shift: Any) -> int:
    """A score as a squared distance, in bits that sort like it."""
    return float_bits((norms[c] + shift) + stretch * scores[k, c])


@inline
def tile_minima(
    scores: Any,  # IN  (n, width)
    k: int,  # IN  row
    norms: Any,  # IN  (width,)
    stretch: Any,  # IN  factor of this row's scores
    shift: Any,  # IN  ‖x − offset‖²: makes distances of scores, which are not negative
    keys: Any,  # OUT (width / TILE, rounded up) the lowest key of each tile
) -> int:
    """The tile of the lowest score. The trip count of the inner loop is constant: it vectorises. O(width)."""
    width = scores.shape[1]
    full = width // TILE
    for t in range(full):
        first = t * TILE
        lowest = key_of(scores, k, first, norms, stretch, shift)
        for c in range(TILE):
            key = key_of(scores, k, first + c, norms, stretch, shift)
            lowest = key if key < lowest else lowest
        keys[t] = lowest
    if full * TILE < width:
        lowest = key_of(scores, k, full * TILE, norms, stretch, shift)
        for c in range(full * TILE, width):
            key = key_of(scores, k, c, norms, stretch, shift)
            lowest = key if key < lowest else lowest
        keys[full] = lowest
    best = 0
    for t in range(1, (width + TILE - 1) // TILE):
        if keys[t] < keys[best]:
            best = t
    return best


@inline
def look_into_tile(scores: Any, k: int, norms: Any, stretch: Any, shift: Any, tile: int, limit: int) -> tuple[int, int]:
    """How many keys of a tile do not exceed the limit, and the position of the last of them. It vectorises."""
    first = tile * TILE
    count, last = 0, 0
    if first + TILE <= scores.shape[1]:
        for c in range(TILE):
            here = key_of(scores, k, first + c, norms, stretch, shift) <= limit
            count += here
            last = max(last, c if here else 0)
    else:
        for c in range(scores.shape[1] - first):
            here = key_of(scores, k, first + c, norms, stretch, shift) <= limit
            count += here
            last = max(last, c if here else 0)
    return count, first + last


@inline
def scores_may_overflow(
    reach: float,  # IN  no less than ‖x − offset‖ and ‖m − offset‖
    scale: float,  # IN  factor of the row's scores
    tiny: float,  # IN  smallest normal number of the scores' dtype; its inverse is nearly the largest one
) -> bool:
    """Whether a score, or the factor, can leave the range of its dtype: such scores nominate nothing."""
    return not (4.0 * reach * reach * tiny < 1.0 and scale * tiny < 1.0)


@inline
def farthest(rows: Any, row: int, scale: float, length: float, squared: float, centers: Any) -> float:
    """The highest score, as a squared distance, that may hide a centre no farther than √squared.

    Such a centre has ‖m‖ ≤ ‖x‖ + d, which bounds the rounding error of its score and of its exact distance. It is
    infinite where scores may overflow.
    """
    n_terms = rows[0].shape[1] if len(rows) == 1 else rows[-1][row + 1] - rows[-1][row]
    unit, tiny, reach = centers.unit, centers.tiny, length + np.sqrt(squared)
    if scores_may_overflow(reach, scale, tiny):
        return np.inf
    slack = (2.0 * n_terms + 8.0) * (unit * length * reach + tiny * (1.0 + scale)) + 8.0 * unit * reach * reach
    slack += (centers.centers.shape[1] + 8.0) * 2.0**-52 * reach * reach
    return squared + slack


@inline
def highest_key(rows: Any, row: int, scale: float, length: float, squared: float, centers: Any, keys: Any) -> int:
    """The same as a key; the highest of all where scores may overflow."""
    limit = farthest(rows, row, scale, length, squared, centers)
    if limit == np.inf:
        return np.iinfo(keys.dtype).max
    return float_bits(centers.score_norms.dtype.type(limit))


@inline
def measure(rows: Any, row: int, scale: float, centers: Any, c: int, i: int, own: int, best: Any, labels: Any) -> None:
    """Give row i to the centre at position c if it is closer, or as close and of lower label. O(D) or O(nnz).

    `own` is the label that the row came with: it stays where another centre is as close.
    """
    center = centers.members[c]
    label = centers.base + center
    if label == labels[i]:
        return
    squared = squared_distance(rows, row, scale, centers.centers, center, centers.norms)
    if labels[i] < 0 or squared < best[i] or (squared == best[i] and label < labels[i] != own):
        best[i] = squared
        labels[i] = label


@kernel
def lower_block(
    rows: Any,  # IN
    at: Any,  # IN  (m,) where the rows of a block lie
    chosen: Any,  # IN  (m,) their numbers
    scales: Any,  # IN  (N,) or empty
    centers: Any,  # IN
    first: int,  # IN  position of the first centre
    scores: Any,  # IN  (m, width) see `score_block`
    scratch: Any,  # IN/OUT the lengths of the rows; keys
    best: Any,  # IN/OUT (N,) squared distance to the centre of the label
    labels: Any,  # IN/OUT (N,) −1: none yet
) -> None:
    """Give rows to the closest of some centres, the lowest label on ties, if it is closer than their own.

    O(m · width)
    """
    m, width = scores.shape
    keys, norms = scratch.keys, centers.score_norms[first : first + width]
    T = centers.score_norms.dtype.type
    for k in range(m):
        i, row, own = chosen[k], at[k], labels[chosen[k]]
        scale = scales[i] if scales.shape[0] else 1.0
        length = scale * scratch.lengths[k]
        stretch, shift = T(scale), T(length * length)
        lowest = tile_minima(scores, k, norms, stretch, shift, keys)
        if labels[i] >= 0 and keys[lowest] > highest_key(rows, row, scale, length, best[i], centers, keys):
            continue
        _, nominee = look_into_tile(scores, k, norms, stretch, shift, lowest, keys[lowest])
        measure(rows, row, scale, centers, first + nominee, i, own, best, labels)
        limit = highest_key(rows, row, scale, length, best[i], centers, keys)
        for t in range((width + TILE - 1) // TILE):
            if keys[t] > limit:
                continue
            count, last = look_into_tile(scores, k, norms, stretch, shift, t, limit)
            if count == 1:
                if last != nominee:
                    measure(rows, row, scale, centers, first + last, i, own, best, labels)
                continue
            for c in range(t * TILE, min(width, (t + 1) * TILE)):
                if key_of(scores, k, c, norms, stretch, shift) <= limit:
                    measure(rows, row, scale, centers, first + c, i, own, best, labels)


@inline
def fill_lanes(rows: Any, at: Any, chosen: Any, scales: Any, offset: Any, begin: int, lanes: Any) -> None:
    """The rows from at[begin] on, one to a lane, with nothing found yet; the last fills what is left. O(TILE · D)."""
    x, last = rows[0], at.shape[0] - 1
    for r in range(TILE):
        k = min(begin + r, last)
        stretch = lanes.dtype.type(scales[chosen[k]] if scales.shape[0] else 1.0)
        for j in range(x.shape[1]):
            value = lanes.dtype.type(x[at[k], j] - offset[j] if offset.shape[0] else x[at[k], j])
            lanes[STATE + j, r] = stretch * value
        lanes[1, r] = lanes[2, r] = np.inf


@inline
def lower_lanes(lanes: Any, nearest: Any, factors: Any, c: int, norm: Any) -> None:
    """One centre against the rows of all lanes. Trip counts are constant: it vectorises. O(TILE · D)."""
    D = factors.shape[0]
    head = D - (D - 1) // 4 * 4
    a, b, d = factors[0, c], factors[min(1, head - 1), c], factors[min(2, head - 1), c]
    if head == 1:
        for r in range(TILE):
            lanes[0, r] = norm + a * lanes[STATE, r]
    elif head == 2:
        for r in range(TILE):
            lanes[0, r] = norm + a * lanes[STATE, r] + b * lanes[STATE + 1, r]
    else:
        e = factors[3, c] if head == 4 else norm - norm
        fourth = STATE + head - 1
        for r in range(TILE):
            three = norm + a * lanes[STATE, r] + b * lanes[STATE + 1, r] + d * lanes[STATE + 2, r]
            lanes[0, r] = three + e * lanes[fourth, r]
    for j in range(head, D, 4):
        a, b, d, e = factors[j, c], factors[j + 1, c], factors[j + 2, c], factors[j + 3, c]
        for r in range(TILE):
            lanes[0, r] += (a * lanes[STATE + j, r] + b * lanes[STATE + j + 1, r]) + (
                d * lanes[STATE + j + 2, r] + e * lanes[STATE + j + 3, r]
            )
    for r in range(TILE):
        score, lowest, second, held = lanes[0, r], lanes[1, r], lanes[2, r], nearest[r]
        lanes[1, r] = min(score, lowest)
        lanes[2, r] = min(max(score, lowest), second)
        nearest[r] = nearest.dtype.type(c) if score < lowest else held


@kernel
def lower_few_columns(
    rows: Any,  # IN
    at: Any,  # IN  (m,) where the rows of a block lie
    chosen: Any,  # IN  (m,) their numbers
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) or empty
    centers: Any,  # IN
    first: int,  # IN  centres first … stop − 1
    stop: int,  # IN
    scratch: Any,  # IN/OUT scores; integers as wide as a score
    best: Any,  # IN/OUT (N,) squared distance to the centre of the label
    labels: Any,  # IN/OUT (N,) −1: none yet
) -> None:
    """What `score_block` and `lower_block` do, for rows of few columns. O(m · width · D)

    In few dimensions a score is a handful of multiplications: to write it to memory and read it again would be most of
    the work. Here a row has a lane, and each centre in turn lowers the lowest and the second lowest score of all lanes.
    """
    if len(rows) > 1:
        return
    m, D = at.shape[0], rows[0].shape[1]
    lanes, nearest = as_matrix(scratch.scores, STATE + D, TILE), scratch.winners
    for begin in range(0, m, TILE):
        fill_lanes(rows, at, chosen, scales, offset, begin, lanes)
        nearest[:] = first
        for c in range(first, stop):
            lower_lanes(lanes, nearest, centers.factors, c, centers.score_norms[c])
        for r in range(min(TILE, m - begin)):
            i, row, square = chosen[begin + r], at[begin + r], 0.0
            scale, own = scales[i] if scales.shape[0] else 1.0, labels[i]
            for j in range(D):
                square += np.float64(lanes[STATE + j, r]) * lanes[STATE + j, r]
            length, shift = np.sqrt(square), square * (1.0 - 4.0 * centers.unit)
            if own >= 0 and lanes[1, r] + shift > farthest(rows, row, scale, length, best[i], centers):
                continue
            measure(rows, row, scale, centers, nearest[r], i, own, best, labels)
            if not lanes[2, r] + shift > farthest(rows, row, scale, length, best[i], centers):
                for c in range(first, stop):
                    measure(rows, row, scale, centers, c, i, own, best, labels)
