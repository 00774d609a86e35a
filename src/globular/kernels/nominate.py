"""Scores nominate the closest centre of every row of a block, and say how much room there is to the next one.

A score ‖m‖² − 2 x·m + ‖x‖² is a squared distance, fast but rounded, so scores only *nominate*. The two lowest of each
row come from tiles of centres (`kernels.tiles`), or from the nonzeros of CSR rows.

`judge_block` turns the two into the *room* of a row: a lower bound of the distance to all other centres less an upper
bound of the distance to the nominated one, whatever the rounding of the scores. A row with room is settled.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline, kernel
from globular.kernels.nearest import compare
from globular.kernels.rows import multiply_csr_row

CENTER_CHUNK = 1024
"""Most centres that a block of rows looks at before it looks at the next ones."""
ROUND_DOWN = 1.0 - 2.0**-22
"""Factor that makes up for the rounding of a float32."""


class Nominees(NamedTuple):
    """Centres ready to be scored; K is C rounded up to whole tiles by centres that are too far away to be nominated."""

    centers: Any  # (C, D) float64
    norms: Any  # (C,) ‖m‖² float64, for CSR rows
    factors: Any  # (K / width, D, width), for CSR rows (1, D, K): −2 (m − offset) in the rows' dtype
    score_norms: Any  # (K,) ‖m − offset‖² in the rows' dtype
    mask: Any  # (1,) the bits of a key that belong to its score, as wide as a score
    bounds: Any  # in the rows' dtype, see `Bound`


class Bound(IntEnum):
    """What the bounds of scores are."""

    TRUNCATED = 0  # share of a score that the mask of keys cuts off, at most
    PER_PRODUCT = 1  # rounding of a score, by ‖x‖ ‖m‖
    PER_SQUARE = 2  # the same by squared lengths
    TINY = 3  # the same by underflow
    LARGEST = 4  # ‖x‖² from which scores may overflow
    NOBODY = 5  # a norm of centres that are none


@kernel
def csr_scores_of_row(
    rows: Any,  # IN  (data, indices, indptr)
    row: int,  # IN
    scale: float,  # IN
    square: Any,  # IN  ‖x‖²
    nominees: Any,  # IN
    first: int,  # IN  centres first … stop − 1
    stop: int,  # IN
    line: Any,  # OUT (≥ stop − first,)
) -> None:
    """The scores of a CSR row. O(nnz · chunk)."""
    multiply_csr_row(rows, row, scale, nominees.factors[0], first, line[: stop - first])
    for c in range(stop - first):
        line[c] += square + nominees.score_norms[first + c]


@kernel
def merge_chunk(
    lowest: Any,  # IN  (m,) of a chunk of centres
    second: Any,  # IN  (m,)
    nominated: Any,  # IN  (m,)
    low: Any,  # IN/OUT (m,) the lowest score so far, rounded down
    next_low: Any,  # IN/OUT (m,) the second lowest
    found: Any,  # IN/OUT (m,) the centre of the lowest
) -> None:
    """Lower the two lowest scores by those of a chunk. O(m)."""
    for i in range(low.shape[0]):
        a, b, c = lowest[i], second[i], nominated[i]
        held = low[i]
        closer = a < held
        other = held if closer else a
        b = b if b < other else other
        next_low[i] = b if b < next_low[i] else next_low[i]
        low[i] = a if closer else held
        found[i] = c if closer else found[i]


@kernel
def judge_block(
    squares: Any,  # IN  (m,) ‖x − offset‖²
    low: Any,  # IN  (m,) the lowest score, rounded down
    next_low: Any,  # IN  (m,) the second lowest
    bounds: Any,  # IN
    room: Any,  # OUT (m,) float32
) -> None:
    """How much farther all other centres are at least than the nominated one; not above 0 where that is unsure. O(m).

    A score differs from its squared distance by at most slack(‖m − offset‖), which grows with its argument. The
    nominated centre has d² ≤ a + slack(‖x‖ + d), hence d ≤ 2 (‖x‖ + √a) and with that d² ≤ a + slack(2 (‖x‖ + √a)).
    Any other centre has d² ≥ b − slack(‖x‖ + √b): a closer one had ‖m‖ ≤ ‖x‖ + √b, and so a score below b. Roots of
    these are not taken: 2 ‖x‖ √a ≤ ‖x‖² + a.
    """
    T = squares.dtype.type
    per_product, per_square, tiny = bounds[Bound.PER_PRODUCT], bounds[Bound.PER_SQUARE], bounds[Bound.TINY]
    truncated, largest = T(1) + bounds[Bound.TRUNCATED], bounds[Bound.LARGEST]
    up, down, zero = T(1) + per_square, T(1) - per_square, T(0)
    half, two, three, eight = T(0.5), T(2), T(3), T(8)
    round_down = T(ROUND_DOWN)
    for i in range(squares.shape[0]):
        q, a, b = squares[i], low[i], next_low[i]
        a = (a if a > zero else zero) * truncated
        b = b if b > zero else zero
        upper = a + (per_product * (three * q + a) + eight * per_square * (q + a) + tiny)
        beyond = b - (half * per_product * (three * q + b) + two * per_square * (q + b) + tiny)
        beyond = beyond if beyond > zero else zero
        gap = np.sqrt(beyond) * down - np.sqrt(upper) * up
        gap = gap * round_down if gap > zero else zero
        room[i] = np.float32(gap if q < largest else zero)


@inline
def check_scores(
    rows: Any,  # IN
    row: int,  # IN  its place there
    scale: float,  # IN
    square: float,  # IN  ‖x − offset‖²
    scores: Any,  # IN  (≥ chunk,) the row's scores
    first: int,  # IN  the chunk's first centre
    stop: int,  # IN  the one behind its last
    nominees: Any,  # IN
    i: int,  # IN  the row's entry in the following
    best: Any,  # IN/OUT squared distance to the closest centre so far
    found: Any,  # IN/OUT its index
) -> None:
    """Compare exactly with every centre of a chunk whose score may hide a closer one. O(chunk)."""
    bounds = nominees.bounds
    per_product, per_square, tiny = bounds[Bound.PER_PRODUCT], bounds[Bound.PER_SQUARE], bounds[Bound.TINY]
    length = np.sqrt(np.float64(square)) * (1.0 + per_square)
    if not square < bounds[Bound.LARGEST]:  # scores may have overflowed
        for c in range(first, stop):
            compare(rows, row, scale, nominees.centers, nominees.norms, i, c, best, found)
        return
    nominated = found[i]
    reach = length + np.sqrt(best[i])
    limit = best[i] + (per_product * length * reach + per_square * reach * reach + tiny)
    for c in range(first, stop):
        if np.float64(scores[c - first]) <= limit and c != nominated:
            compare(rows, row, scale, nominees.centers, nominees.norms, i, c, best, found)
