"""Rows of few columns against all centres, without a buffer of scores.

In few dimensions a score is a handful of multiplications, and writing it to memory and reading it again would be most
of the work. Here rows go in groups of LANES, one row to a lane: each centre in turn lowers the lowest and the second
lowest score of every lane. What follows is as in `nearest`: the lowest nominates, an exact distance decides, and
where the second lowest is within rounding of it all centres of the chunk are compared exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.kernels.nearest import check_all, compare, score_slack, scores_may_overflow

LANES = 64
STATE = 3  # rows of scratch beside the columns: the score at hand, the lowest and the second lowest


@inline
def fill_lanes(
    lanes: Any,  # OUT (3 + D, LANES)
    nearest: Any,  # OUT (LANES,)
    seen: Any,  # IN  (n, D) rows about the offset
    scales: Any,  # IN  (n,) or empty
    base: int,  # IN  the row of the first lane; behind the last row it is repeated
) -> None:
    """A group of rows, one to a lane, with nothing found yet."""
    n, n_columns = seen.shape
    for r in range(LANES):
        i = min(base + r, n - 1)
        stretch = lanes.dtype.type(scales[i] if scales.shape[0] else 1.0)
        for j in range(n_columns):
            lanes[STATE + j, r] = stretch * seen[i, j]
        lanes[1, r] = np.inf
        lanes[2, r] = np.inf
        nearest[r] = 0


@inline
def lower_lanes(
    lanes: Any,  # IN/OUT (3 + D, LANES) score, lowest, second lowest; then the columns of the rows
    nearest: Any,  # IN/OUT (LANES,) the centre of the lowest score
    factors: Any,  # IN  (D, chunk) −2 (m − offset)ᵀ
    c: int,  # IN  centre
    norm: Any,  # IN  ‖m − offset‖²
) -> None:
    """One centre against all lanes. Trip counts are constant: it vectorises. O(LANES · D)."""
    n_columns = factors.shape[0]
    a = factors[0, c]
    if n_columns == 1:
        for r in range(LANES):
            lanes[0, r] = norm + a * lanes[STATE, r]
    elif n_columns == 2:
        b = factors[1, c]
        for r in range(LANES):
            lanes[0, r] = norm + a * lanes[STATE, r] + b * lanes[STATE + 1, r]
    else:
        b, d = factors[1, c], factors[2, c]
        for r in range(LANES):
            lanes[0, r] = norm + a * lanes[STATE, r] + b * lanes[STATE + 1, r] + d * lanes[STATE + 2, r]
        rest = 3
        if n_columns >= 7:
            rest = 7
            a, b, d, e = factors[3, c], factors[4, c], factors[5, c], factors[6, c]
            for r in range(LANES):
                lanes[0, r] += (a * lanes[STATE + 3, r] + b * lanes[STATE + 4, r]) + (
                    d * lanes[STATE + 5, r] + e * lanes[STATE + 6, r]
                )
        for j in range(rest, n_columns):
            a = factors[j, c]
            for r in range(LANES):
                lanes[0, r] += a * lanes[STATE + j, r]
    for r in range(LANES):
        score, lowest, second, held = lanes[0, r], lanes[1, r], lanes[2, r], nearest[r]
        closer = score < lowest
        lanes[1, r] = min(score, lowest)
        lanes[2, r] = min(max(score, lowest), second)
        nearest[r] = np.int32(c) if closer else held


@kernel
def nearest_of_thin(
    rows: Any,  # IN  the rows themselves
    seen: Any,  # IN  (n, D) rows about the offset
    lengths: Any,  # IN  (n,) their lengths
    scales: Any,  # IN  (n,) row scales or empty
    factors: Any,  # IN  (D, chunk) −2 (m − offset)ᵀ
    score_norms: Any,  # IN  (chunk,) ‖m − offset‖² in the scores' dtype
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) ‖m‖² float64
    first: int,  # IN  index of the chunk's first centre
    unit: float,  # IN  unit round-off of the scores' dtype
    tiny: float,  # IN  its smallest normal number
    best: Any,  # IN/OUT (n,) squared distance to the closest centre so far
    labels: Any,  # IN/OUT (n,) its index; −1 if none yet
    lanes: Any,  # scratch (3 + D, LANES) in the scores' dtype
    nearest: Any,  # scratch (LANES,) int32
) -> None:
    """Lower `best` and `labels` by the centres of this chunk; ties go to the lowest index. O(n · chunk · D)."""
    n, n_columns = seen.shape
    chunk = factors.shape[1]
    for base in range(0, n, LANES):
        fill_lanes(lanes, nearest, seen, scales, base)
        for c in range(chunk):
            lower_lanes(lanes, nearest, factors, c, score_norms[c])
        for r in range(min(LANES, n - base)):
            i = base + r
            scale = scales[i] if scales.shape[0] else 1.0
            length = scale * lengths[i]
            compare(rows, i, scale, centers, norms, i, first + nearest[r], best, labels)
            # A closer centre has ‖m‖ ≤ ‖x‖ + d, which bounds the rounding error of its score.
            reach = length + np.sqrt(best[i])
            slack = score_slack(length, reach, scale, n_columns, unit, tiny)
            is_safe = lanes[2, r] > best[i] + slack + 4.0 * unit * length * length - length * length
            if scores_may_overflow(reach, scale, tiny) or (chunk > 1 and not is_safe):
                check_all(rows, i, scale, centers, norms, first, first + chunk, best, labels)
