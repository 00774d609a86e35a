"""The closest centre of every row of a block, exactly: scores nominate, exact distances decide where those cannot."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline, kernel, kernel_apart, twin
from globular.jit.bits import float_bits
from globular.jit.prefetch import prefetch_row
from globular.jit.tiles import ROWS, lowest_of_rows, lowest_of_scores
from globular.jit.views import as_read_only
from globular.kernels.nominate import Bound, check_scores, csr_scores_of_row, judge_block, merge_chunk
from globular.kernels.rows import squared_distance

AHEAD = 2 * ROWS
"""Rows to ask for before they are read."""


class Given(NamedTuple):
    """What is known of every row."""

    weights: Any  # (n,) or empty
    scales: Any  # (n,) or empty
    offset: Any  # (D,) subtracted from dense rows; empty if there is none


class Block(NamedTuple):
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
        if i + AHEAD < places.shape[0]:
            prefetch_row(x, places[i + AHEAD])
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
            for ahead in range(min(i + AHEAD, places.shape[0]), min(i + AHEAD + ROWS, places.shape[0])):
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
