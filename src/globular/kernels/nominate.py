"""Scores of a block of rows against all centres, and the two lowest of each row.

A score ‖m‖² − 2 x·m + ‖x‖² is a squared distance, fast but rounded, so scores only *nominate*. Rows are in lanes: the
scores of a block are a matrix of centres by rows, made by dot products in registers where centres are few, by BLAS
otherwise, and from the nonzeros of CSR rows. The lowest and the second lowest of a row are found among integer keys:
the bits of the score, whose last ones are replaced by the number of the centre. Keys are never above their scores.

`judge_block` turns the two into the *room* of a row: a lower bound of the distance to all other centres less an upper
bound of the distance to the nominated one, whatever the rounding of the scores. A row with room is settled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from globular.kernels.compile import inline, kernel
from globular.kernels.nearest import compare
from globular.kernels.rows import float_bits, multiply_csr_row

CENTER_CHUNK = 1024
"""Centres that are scored at once."""
ROUND_DOWN = 1.0 - 2.0**-22
"""Factor that makes up for the rounding of a float32."""
TILE = 4
"""Rows, and centres, of a tile of dot products: 16 sums in registers. Centres come in multiples of it."""


class Nominees(NamedTuple):
    """Centres ready to be scored; K is C rounded up to whole tiles by centres that are too far away to be nominated."""

    centers: Any  # (C, D) float64
    norms: Any  # (C,) ‖m‖² float64, for CSR rows
    factors: Any  # (K, D), for CSR rows (D, K): −2 (m − offset) in the rows' dtype
    score_norms: Any  # (K,) ‖m − offset‖² in the rows' dtype
    numbers: Any  # (chunk,) 0, 1, … as wide as a score
    mask: Any  # (1,) the bits of a key that belong to its score
    bounds: Any  # what `rounding` says, in the rows' dtype


TRUNCATED, PER_PRODUCT, PER_SQUARE, TINY, LARGEST, NOBODY = range(6)
N_BOUNDS = 6


def score_key(score: float, mask: int, number: int) -> int:
    """The bits of a score, the last ones replaced by a number."""
    raise NotImplementedError


@overload(score_key, inline="always")
def _score_key(score: Any, mask: Any, number: Any) -> Any:
    if score == types.float32:  # integers would be promoted to 64 bits, which halves the speed

        def single(score: Any, mask: Any, number: Any) -> Any:
            return np.int32((float_bits(score) & mask) | number)

        return single

    def double(score: Any, mask: Any, number: Any) -> Any:
        return np.int64((float_bits(score) & mask) | number)

    return double


def key_score(key: int, mask: int) -> float:
    """A score of these bits, the number left out: not above the score that the key was made of."""
    raise NotImplementedError


@overload(key_score, inline="always")
def _key_score(key: Any, mask: Any) -> Any:
    if key == types.int32:

        def single(key: Any, mask: Any) -> Any:
            return np.int32(key & mask).view(np.float32)

        return single

    def double(key: Any, mask: Any) -> Any:
        return np.int64(key & mask).view(np.float64)

    return double


@inline
def lower(a: Any, b: Any) -> Any:
    """The lower of two keys; unlike `min` it keeps their width."""
    return a if a < b else b


@inline
def higher(a: Any, b: Any) -> Any:
    """The higher of two keys."""
    return b if a < b else a


@kernel
def dot_scores(
    x: Any,  # IN  (n, D)
    places: Any,  # IN  (m,) rows of x; empty: the first m
    m: int,  # IN
    factors: Any,  # IN  (K, D), K a multiple of TILE
    scores: Any,  # OUT (≥ K, ≥ m rounded up to tiles)
) -> None:
    """scores[c, i] = x[places[i]] · factors[c], tile by tile: the loop over columns has 16 sums. O(m · K · D)."""
    n_columns = x.shape[1]
    zero = x.dtype.type(0)
    for i in range(0, m, TILE):
        r0, r1, r2, r3 = i, min(i + 1, m - 1), min(i + 2, m - 1), min(i + 3, m - 1)
        if places.shape[0]:
            r0, r1, r2, r3 = places[r0], places[r1], places[r2], places[r3]
        for c in range(0, factors.shape[0], TILE):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            d0 = d1 = d2 = d3 = e0 = e1 = e2 = e3 = zero
            for j in range(n_columns):
                x0, x1, x2, x3 = x[r0, j], x[r1, j], x[r2, j], x[r3, j]
                a, b, d, e = factors[c, j], factors[c + 1, j], factors[c + 2, j], factors[c + 3, j]
                a0 += a * x0
                a1 += a * x1
                a2 += a * x2
                a3 += a * x3
                b0 += b * x0
                b1 += b * x1
                b2 += b * x2
                b3 += b * x3
                d0 += d * x0
                d1 += d * x1
                d2 += d * x2
                d3 += d * x3
                e0 += e * x0
                e1 += e * x1
                e2 += e * x2
                e3 += e * x3
            scores[c, i], scores[c, i + 1], scores[c, i + 2], scores[c, i + 3] = a0, a1, a2, a3
            scores[c + 1, i], scores[c + 1, i + 1], scores[c + 1, i + 2], scores[c + 1, i + 3] = b0, b1, b2, b3
            scores[c + 2, i], scores[c + 2, i + 1], scores[c + 2, i + 2], scores[c + 2, i + 3] = d0, d1, d2, d3
            scores[c + 3, i], scores[c + 3, i + 1], scores[c + 3, i + 2], scores[c + 3, i + 3] = e0, e1, e2, e3


@kernel
def csr_scores_of_block(
    rows: Any,  # IN  (data, indices, indptr)
    places: Any,  # IN  (m,) rows
    scales: Any,  # IN  (n,) or empty
    factors: Any,  # IN  (D, K), transposed: the centres of a column lie together
    first: int,  # IN  first centre
    chunk: int,  # IN  how many
    line: Any,  # scratch (chunk,)
    scores: Any,  # OUT (≥ chunk, ≥ m)
) -> None:
    """scores[c, i] = x[places[i]] · factors[:, first + c]. O(nnz · chunk)."""
    for i in range(places.shape[0]):
        row = places[i]
        multiply_csr_row(rows, row, scales[row] if scales.shape[0] else 1.0, factors, first, line[:chunk])
        for c in range(chunk):
            scores[c, i] = line[c]


@kernel
def two_lowest(
    scores: Any,  # IN  (≥ chunk, ≥ m) −2 x·(m − offset)
    norms: Any,  # IN  (K,) ‖m − offset‖²
    first: int,  # IN  the chunk's first centre
    chunk: int,  # IN  how many, a multiple of TILE
    squares: Any,  # IN  (m,) ‖x − offset‖²
    numbers: Any,  # IN  (≥ chunk,) 0, 1, …
    mask: Any,  # IN
    nobody: Any,  # IN  a key above all others
    lowest: Any,  # OUT (m,) keys
    second: Any,  # OUT (m,) keys
) -> None:
    """The lowest and second lowest key of every row. It vectorises over the rows. O(m · chunk)."""
    m = squares.shape[0]
    for i in range(m):
        lowest[i] = nobody
        second[i] = nobody
    for c in range(0, chunk, TILE):
        c0, c1, c2, c3 = numbers[c], numbers[c + 1], numbers[c + 2], numbers[c + 3]
        n0, n1, n2, n3 = norms[first + c], norms[first + c + 1], norms[first + c + 2], norms[first + c + 3]
        for i in range(m):
            q = squares[i]
            v0 = score_key(scores[c, i] + (q + n0), mask, c0)
            v1 = score_key(scores[c + 1, i] + (q + n1), mask, c1)
            v2 = score_key(scores[c + 2, i] + (q + n2), mask, c2)
            v3 = score_key(scores[c + 3, i] + (q + n3), mask, c3)
            a, b = lower(v0, v1), higher(v0, v1)
            d, e = lower(v2, v3), higher(v2, v3)
            least = lower(a, d)
            held = lowest[i]
            second[i] = lower(second[i], lower(lower(higher(a, d), lower(b, e)), higher(least, held)))
            lowest[i] = lower(least, held)


@kernel
def merge_chunk(
    lowest: Any,  # IN  (m,) keys of a chunk
    second: Any,  # IN  (m,) keys
    mask: Any,  # IN
    first: int,  # IN  the chunk's first centre
    low: Any,  # IN/OUT (m,) the lowest score so far, rounded down
    next_low: Any,  # IN/OUT (m,) the second lowest
    found: Any,  # IN/OUT (m,) the centre of the lowest
) -> None:
    """Lower the two lowest scores by those of a chunk. O(m)."""
    base = np.int32(first)
    for i in range(lowest.shape[0]):
        key = lowest[i]
        a, b = key_score(key, mask), key_score(second[i], mask)
        held, c = low[i], np.int32(base + np.int32(key & ~mask))
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
    Any other centre has d² ≥ b − slack(‖x‖ + √b): a closer one had ‖m‖ ≤ ‖x‖ + √b, and so a score below b.
    """
    T = squares.dtype.type
    truncated, per_product, per_square = T(1) + bounds[TRUNCATED], bounds[PER_PRODUCT], bounds[PER_SQUARE]
    tiny, largest = bounds[TINY], bounds[LARGEST]
    up, down, zero, two = T(1) + per_square, T(1) - per_square, T(0), T(2)
    round_down = T(ROUND_DOWN)
    for i in range(squares.shape[0]):
        q, a, b = squares[i], low[i], next_low[i]
        length = np.sqrt(q) * up
        a = (a if a > zero else zero) * truncated
        b = b if b > zero else zero
        reach = two * (length + np.sqrt(a))
        upper = a + (per_product * length * reach + per_square * reach * reach + tiny)
        reach = length + np.sqrt(b)
        beyond = b - (per_product * length * reach + per_square * reach * reach + tiny)
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
    scores: Any,  # IN  (≥ chunk, ·)
    column: int,  # IN  where the row's scores are
    first: int,  # IN  the chunk's first centre
    stop: int,  # IN  the one behind its last
    nominees: Any,  # IN
    i: int,  # IN  the row's entry in the following
    best: Any,  # IN/OUT squared distance to the closest centre so far
    found: Any,  # IN/OUT its index
) -> None:
    """Compare exactly with every centre of a chunk whose score may hide a closer one. O(chunk)."""
    bounds, norms = nominees.bounds, nominees.score_norms
    length = np.sqrt(np.float64(square)) * (1.0 + bounds[PER_SQUARE])
    if not square < bounds[LARGEST]:  # scores may have overflowed
        for c in range(first, stop):
            compare(rows, row, scale, nominees.centers, nominees.norms, i, c, best, found)
        return
    nominated = found[i]
    reach = length + np.sqrt(best[i])
    limit = best[i] + (bounds[PER_PRODUCT] * length * reach + bounds[PER_SQUARE] * reach * reach + bounds[TINY])
    for c in range(first, stop):
        if np.float64(scores[c - first, column] + (square + norms[c])) <= limit and c != nominated:
            compare(rows, row, scale, nominees.centers, nominees.norms, i, c, best, found)
