"""The closest centre of every row of a block, exactly: scores nominate, exact distances decide where those cannot."""

from __future__ import annotations

from typing import Any, NamedTuple

from globular.kernels.blas import multiply_rows
from globular.kernels.compile import kernel
from globular.kernels.nominate import (
    CENTER_CHUNK,
    LARGEST,
    NOBODY,
    check_scores,
    csr_scores_of_block,
    dot_scores,
    judge_block,
    merge_chunk,
    score_key,
    two_lowest,
)
from globular.kernels.prefetch import prefetch_row
from globular.kernels.rows import for_csr, squared_distance

FEW_CENTERS = 8
"""Centres up to which scores are dot products in registers (more where there are more columns), not BLAS."""
NARROW = 16
"""Columns below which BLAS is better for few centres too."""


AHEAD = 12
"""Rows to ask for before they are copied."""


class Given(NamedTuple):
    """What is known of every row."""

    weights: Any  # (n,) or empty
    scales: Any  # (n,) or empty
    offset: Any  # (D,) subtracted from dense rows; empty if there is none
    origin: Any  # (D,) the same, zeros if there is none


class Block(NamedTuple):
    """Scratch memory of a thread for a block of rows."""

    queue: Any  # (B + STRETCH + TILE,) rows that wait for a block
    copies: Any  # (B + TILE, D) the rows about the offset and scaled, where they differ from the rows as they lie
    copied: Any  # the same, read-only
    scores: Any  # (chunk, B + TILE)
    squares: Any  # (B + TILE,)
    keys: Any  # (2, B + TILE)
    lows: Any  # (2, B + TILE)
    room: Any  # (B + TILE,) float32
    found: Any  # (B + TILE,) int32
    best: Any  # (B,) float64
    again: Any  # (B + TILE,) rows to be scored once more
    doubtful: Any  # (B,) where they are in the block
    line: Any  # (K,)


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
        if i + AHEAD < places.shape[0]:
            prefetch_row(x, places[i + AHEAD])
        if given.scales.shape[0]:
            for j in range(x.shape[1]):
                copies[i, j] = T(given.scales[row] * x[row, j])
        elif given.offset.shape[0]:
            for j in range(x.shape[1]):
                copies[i, j] = T(x[row, j] - given.offset[j])
        else:
            for j in range(x.shape[1]):
                copies[i, j] = x[row, j]


def score_block(rows: Any, places: Any, given: Any, nominees: Any, first: int, stop: int, block: Any) -> None:
    """−2 x·(m − offset) of the rows at `places` with the centres first … stop − 1."""
    x, m, factors = rows[0], places.shape[0], nominees.factors
    n_columns = x.shape[1]
    as_they_lie = given.scales.shape[0] == 0 and given.offset.shape[0] == 0
    by_dots = n_columns >= NARROW and factors.shape[0] <= min(FEW_CENTERS + n_columns // 16, 32)
    if as_they_lie and by_dots:
        dot_scores(x, places, m, factors, block.scores)
    elif as_they_lie and places[m - 1] - places[0] == m - 1:
        multiply_rows(factors, first, stop - first, x, places[0], m, block.scores)
    else:
        copy_block(x, places, given, block.copies)
        if by_dots:
            dot_scores(block.copied, places[:0], m, factors, block.scores)
        else:
            multiply_rows(factors, first, stop - first, block.copies, 0, m, block.scores)


@for_csr(score_block)
def _score_block(rows: Any, places: Any, given: Any, nominees: Any, first: int, stop: int, block: Any) -> None:
    csr_scores_of_block(rows, places, given.scales, nominees.factors, first, stop - first, block.line, block.scores)


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
    m, K, C = places.shape[0], nominees.score_norms.shape[0], nominees.centers.shape[0]
    bounds, mask, q = nominees.bounds, nominees.mask[0], block.squares[:m]
    lowest, second, low, next_low = block.keys[0, :m], block.keys[1, :m], block.lows[0, :m], block.lows[1, :m]
    for i in range(m):
        q[i] = squares[places[i]]
        low[i] = bounds[NOBODY]
        next_low[i] = bounds[NOBODY]
        block.again[i] = places[i]
    nobody = score_key(bounds[NOBODY], mask, nominees.numbers[0])
    n_doubtful = -1  # not known yet
    while n_doubtful != 0:
        n = m if n_doubtful < 0 else n_doubtful
        for first in range(0, K, CENTER_CHUNK):
            stop = min(first + CENTER_CHUNK, K)
            if n_doubtful < 0 or K > CENTER_CHUNK:  # else the scores are still there
                score_block(rows, block.again[:n], given, nominees, first, stop, block)
            if n_doubtful < 0:
                two_lowest(
                    block.scores, nominees.score_norms, first, stop - first, q, nominees.numbers, mask, nobody,
                    lowest, second,
                )  # fmt: skip
                merge_chunk(lowest, second, mask, first, low, next_low, block.found)
                continue
            for position in range(n):
                i, row = block.doubtful[position], block.again[position]
                scale = given.scales[row] if given.scales.shape[0] else 1.0
                column = position if K > CENTER_CHUNK else i
                check_scores(
                    rows, row, scale, q[i], block.scores, column, first, min(stop, C), nominees, i,
                    block.best, block.found,
                )  # fmt: skip
        if n_doubtful > 0:
            return
        judge_block(q, low, next_low, bounds, block.room)
        n_doubtful = 0
        for i in range(m):
            if block.room[i] > 0:
                continue
            row = places[i]
            scale = given.scales[row] if given.scales.shape[0] else 1.0
            if q[i] < bounds[LARGEST]:
                block.best[i] = squared_distance(rows, row, scale, nominees.centers, block.found[i], nominees.norms)
            else:
                block.found[i] = -1
            block.doubtful[n_doubtful] = i
            block.again[n_doubtful] = row
            n_doubtful += 1
