"""The closest centre of every row of a block, exactly, and how much room there is to the next one.

A score ‖m‖² − 2 x·m + ‖x‖² is a squared distance, fast but rounded, so scores only *nominate*. The two lowest of each
row come from tiles of centres (`jit.tiles`), or from the nonzeros of CSR rows.

`judge_block` turns the two into the *room* of a row: a lower bound of the distance to all other centres less an upper
bound of the distance to the nominated one, whatever the rounding of the scores. A row with room is settled; exact
distances decide the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline, kernel, kernel_apart, twin
from globular.jit.memory import as_read_only, float_bits, prefetch_row
from globular.jit.tiles import ROWS, lowest_of_rows, lowest_of_scores
from globular.passes.cpu.engine.rows import multiply_csr_row, squared_distance

CENTER_CHUNK = 1024
"""Most centres that a block of rows looks at before it looks at the next ones."""
ROUND_DOWN = 1.0 - 2.0**-22
"""Factor that makes up for the rounding of a float32."""
STRETCH = 4096
"""Rows that are looked through for those to be labelled before these are."""
ROWS_AHEAD = 2 * ROWS
"""Rows to ask for before they are read."""


class Nominees(NamedTuple):
    """Centres ready to be scored; K is C rounded up to whole tiles by centres that are too far away to be nominated."""

    centers: Any  # (C, D) float64
    norms: Any  # (C,) ‖m‖² float64, for CSR rows
    factors: Any  # (K / width, D, width), for CSR rows (1, D, K): −2 (m − offset) in the rows' dtype
    score_norms: Any  # (K,) ‖m − offset‖² in the rows' dtype
    mask: Any  # (1,) the bits of a key that belong to its score, as wide as a score
    bounds: Any  # in the rows' dtype, see `Bound`


class ScoreBounds(NamedTuple):
    """What the bounds of scores are."""

    TRUNCATED: int = 0  # share of a score that the mask of keys cuts off, at most
    PER_PRODUCT: int = 1  # rounding of a score, by ‖x‖ ‖m‖
    PER_SQUARE: int = 2  # the same by squared lengths
    TINY: int = 3  # the same by underflow
    LARGEST: int = 4  # ‖x‖² from which scores may overflow
    NOBODY: int = 5  # a norm of centres that are none


Bound = ScoreBounds()
"""Plain numbers: numba 0.61 takes no enumeration as an index."""


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


class Given(NamedTuple):
    """What is known of every row."""

    weights: Any  # (n,) or empty
    scales: Any  # (n,) or empty
    offset: Any  # (D,) subtracted from dense rows; empty if there is none
    about: Any  # (1, D) the same, or zeros
    about_norm: Any  # (1,) its squared length where rows are sparse: 0


class LabelBlock(NamedTuple):
    """Scratch memory of a thread for a block of B rows; n = B + ROWS."""

    queue: Any  # (n + STRETCH,) rows that wait for a block
    copies: Any  # (n, D) the rows about the offset and scaled, where they differ from the rows as they lie
    order: Any  # (n,) 0, 1, …
    squares: Any  # (n,)
    lows: Any  # (2, n) the two lowest scores
    chunk_lows: Any  # (2, n) those of a chunk of centres
    nominated: Any  # (n,) int32, the centre of the first of these
    room: Any  # (n,) float32
    found: Any  # (n,) int32
    best: Any  # (B,) float64
    doubtful: Any  # (n,) places in the block of rows whose scores do not decide
    again: Any  # (ROWS,) some of these rows
    again_squares: Any  # (ROWS,)
    scores: Any  # (ROWS, chunk) their scores
    no_scores: Any  # (0, chunk)


@kernel
def copy_block(
    x: Any,  # IN  (n, D)
    places: Any,  # IN  (m,)
    given: Any,  # IN
    copies: Any,  # OUT (≥ m, D) rows about the offset, or scaled
) -> None:
    """The rows of a block, together. O(m · D)."""
    T = copies.dtype.type
    for i in range(places.shape[0]):
        row = places[i]
        if i + ROWS_AHEAD < places.shape[0]:
            prefetch_row(x, places[i + ROWS_AHEAD])
        if given.scales.shape[0]:
            for j in range(x.shape[1]):
                copies[i, j] = T(given.scales[row] * x[row, j])
        else:
            for j in range(x.shape[1]):
                copies[i, j] = T(x[row, j] - given.offset[j])


@inline
def as_they_lie(given: Any) -> bool:
    """Whether dense rows can be scored without a copy."""
    return given.scales.shape[0] == 0 and given.offset.shape[0] == 0


@kernel_apart
def nominate_rows(
    x: Any,  # IN  (n, D)
    places: Any,  # IN  (m,)
    squares: Any,  # IN  (m,)
    nominees: Any,  # IN
    first: int,  # IN  centres first … stop − 1
    stop: int,  # IN
    scores: Any,  # OUT (ROWS, ≥ stop − first) of the last rows; or empty
    lows: Any,  # OUT (2, ≥ m + ROWS)
    nominated: Any,  # OUT (≥ m + ROWS,)
) -> None:
    """The two lowest scores of dense rows. O(m · chunk · D)."""
    mask, nobody = nominees.mask[0], float_bits(nominees.bounds[Bound.NOBODY])
    low, next_low = lows[0], lows[1]
    for i in range(0, places.shape[0], ROWS):
        if first == 0:
            for ahead in range(min(i + ROWS_AHEAD, places.shape[0]), min(i + ROWS_AHEAD + ROWS, places.shape[0])):
                prefetch_row(x, places[ahead])
        lowest_of_rows(
            x, places, i, squares, nominees.factors, nominees.score_norms, first, stop, mask, nobody, scores,
            low, next_low, nominated,
        )  # fmt: skip


@twin
def nominate_block(
    rows: Any, places: Any, given: Any, nominees: Any, first: int, stop: int, block: Any, lows: Any, nominated: Any
) -> None:
    """The two lowest scores of the rows at `places` among the centres first … stop − 1. O(m · chunk · D) or O(nnz)."""
    m = places.shape[0]
    x, lie_at = rows[0], places
    if not as_they_lie(given):
        if first == 0:
            copy_block(rows[0], places, given, block.copies)
        x, lie_at = as_read_only(block.copies), block.order[:m]
    nominate_rows(x, lie_at, block.squares[:m], nominees, first, stop, block.no_scores, lows, nominated)


@nominate_block.for_csr
def _nominate_block(
    rows: Any, places: Any, given: Any, nominees: Any, first: int, stop: int, block: Any, lows: Any, nominated: Any
) -> None:
    mask, nobody = nominees.mask[0], float_bits(nominees.bounds[Bound.NOBODY])
    low, next_low, line = lows[0], lows[1], block.scores[0]
    for i in range(places.shape[0]):
        scale = given.scales[places[i]] if given.scales.shape[0] else 1.0
        csr_scores_of_row(rows, places[i], scale, block.squares[i], nominees, first, stop, line)
        lowest_of_scores(line, i, first, stop, mask, nobody, low, next_low, nominated)


@twin
def score_again(rows: Any, places: Any, n: int, given: Any, nominees: Any, first: int, stop: int, block: Any) -> None:
    """The scores of the n rows block.again, which lie at `places` in the block. O(chunk · D) or O(chunk · nnz)."""
    x, lie_at = rows[0], block.again[:n]
    if not as_they_lie(given):
        x, lie_at = as_read_only(block.copies), places
    nominate_rows(
        x, lie_at, block.again_squares[:n], nominees, first, stop, block.scores, block.chunk_lows, block.nominated
    )


@score_again.for_csr
def _score_again(rows: Any, places: Any, n: int, given: Any, nominees: Any, first: int, stop: int, block: Any) -> None:
    for r in range(n):
        row = block.again[r]
        scale = given.scales[row] if given.scales.shape[0] else 1.0
        csr_scores_of_row(rows, row, scale, block.again_squares[r], nominees, first, stop, block.scores[r])


@kernel
def check_rows(
    rows: Any,  # IN
    places: Any,  # IN  (m,) rows of the block
    given: Any,  # IN
    nominees: Any,  # IN
    doubtful: Any,  # IN  (≤ ROWS,) which of them
    block: Any,  # IN/OUT `found`
) -> None:
    """Compare exactly with whatever centre may be closer than the nominated one. O(C · D) a row."""
    n, C, chunk = doubtful.shape[0], nominees.centers.shape[0], block.scores.shape[1]
    for r in range(n):
        i = doubtful[r]
        row = places[i]
        block.again[r] = row
        block.again_squares[r] = block.squares[i]
        scale = given.scales[row] if given.scales.shape[0] else 1.0
        if block.squares[i] < nominees.bounds[Bound.LARGEST]:
            block.best[i] = squared_distance(rows, row, scale, nominees.centers, block.found[i], nominees.norms)
        else:
            block.found[i] = -1
    for first in range(0, C, chunk):
        stop = min(first + chunk, nominees.score_norms.shape[0])
        score_again(rows, doubtful, n, given, nominees, first, stop, block)
        for r in range(n):
            i, row = doubtful[r], block.again[r]
            scale = given.scales[row] if given.scales.shape[0] else 1.0
            check_scores(
                rows, row, scale, block.squares[i], block.scores[r], first, min(stop, C), nominees, i, block.best,
                block.found,
            )  # fmt: skip


@kernel
def label_block(
    rows: Any,  # IN
    places: Any,  # IN  (m,) rows of the block
    given: Any,  # IN
    nominees: Any,  # IN
    squares: Any,  # IN  (n,) ‖x − offset‖² of all rows
    block: Any,  # OUT `found` and `room`
) -> None:
    """The closest centre of every row of a block, exactly, and its room. O(m · C · D)."""
    m, K, chunk = places.shape[0], nominees.score_norms.shape[0], block.scores.shape[1]
    low, next_low, q = block.lows[0, :m], block.lows[1, :m], block.squares[:m]
    for i in range(m):
        q[i] = squares[places[i]]
    lows, nominated = block.lows, block.found
    for first in range(0, K, chunk):
        nominate_block(rows, places, given, nominees, first, min(first + chunk, K), block, lows, nominated)
        if first > 0:
            merge_chunk(block.chunk_lows[0], block.chunk_lows[1], block.nominated, low, next_low, block.found)
        lows, nominated = block.chunk_lows, block.nominated
    judge_block(q, low, next_low, nominees.bounds, block.room)
    n_doubtful = 0
    for i in range(m):
        block.doubtful[np.uint64(n_doubtful)] = i
        n_doubtful += not block.room[i] > 0
    for begin in range(0, n_doubtful, ROWS):
        check_rows(rows, places, given, nominees, block.doubtful[begin : min(begin + ROWS, n_doubtful)], block)
