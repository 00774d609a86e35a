"""The closest centre of every row of a block, exactly, and how much room there is to the next one.

A row's label must not depend on the rounding of scores, nor on the order of blocks. So scores (`engine.score`) only
*nominate*: whatever centre may be closer than the nominated one, by the bounds of rounding, is compared in the exact
difference form in float64. On ordinary data that is hardly more than one exact distance a row.

`judge_block` turns the two lowest scores into the *room* of a row: a lower bound of the distance to all other centres
less an upper bound of the distance to the nominated one. A row with room is settled without any exact distance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.jit.tiles import ROWS
from globular.passes.cpu.engine.rows import squared_distance
from globular.passes.cpu.engine.score import Bound, nominate, score_again, square_rows

ROUND_DOWN = 1.0 - 2.0**-22
"""Factor that makes up for the rounding of a float32."""


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
def highest_score(square: float, squared: float, bounds: Any) -> float:
    """The highest score that may hide a centre no farther than √squared; infinite where scores may overflow.

    Such a centre has ‖m‖ ≤ ‖x‖ + d, which bounds the rounding error of its score and of its exact distance. Roots are
    not taken: 2 ‖x‖ d ≤ ‖x‖² + d².
    """
    if not square < bounds[Bound.LARGEST]:
        return np.inf
    per_product, per_square = np.float64(bounds[Bound.PER_PRODUCT]), np.float64(bounds[Bound.PER_SQUARE])
    q = np.float64(square)
    return squared + (per_product * (1.5 * q + 0.5 * squared) + 2.0 * per_square * (q + squared) + bounds[Bound.TINY])


@kernel
def check_rows(
    rows: Any,  # IN
    places: Any,  # IN  (m,) where the rows of the block lie
    numbers: Any,  # IN  (m,)
    given: Any,  # IN
    nominees: Any,  # IN
    cell: int,  # IN
    doubtful: Any,  # IN  (≤ ROWS,) which rows of the block
    block: Any,  # IN/OUT `found` and `best`
) -> None:
    """Compare exactly with whatever centre of the cell may be closer than the nominated one. O(width · D) a row."""
    bounds, chunk, end, stop = nominees.bounds, block.scores.shape[1], nominees.ends[cell], nominees.starts[cell + 1]
    for r in range(doubtful.shape[0]):
        i = doubtful[r]
        block.again[r], block.again_squares[r] = places[i], block.squares[i]
        if block.squares[i] < bounds[Bound.LARGEST]:
            scale = given.scales[numbers[i]] if given.scales.shape[0] else 1.0
            center = nominees.members[block.found[i]]
            block.best[i] = squared_distance(rows, places[i], scale, nominees.centers, center, nominees.norms)
        else:
            block.found[i], block.best[i] = -1, np.inf
    for first in range(nominees.starts[cell], stop, chunk):
        score_again(rows, doubtful, numbers, given, nominees, first, min(first + chunk, stop), block)
        for r in range(doubtful.shape[0]):
            i, row, nominated = doubtful[r], block.again[r], block.found[doubtful[r]]
            limit = highest_score(block.squares[i], block.best[i], bounds)
            scale = given.scales[numbers[i]] if given.scales.shape[0] else 1.0
            for c in range(first, min(first + chunk, end)):
                if not np.float64(block.scores[r, c - first]) > limit and c != nominated:
                    squared = squared_distance(rows, row, scale, nominees.centers, nominees.members[c], nominees.norms)
                    held, label = block.best[i], block.found[i]
                    if label < 0 or squared < held or (squared == held and c < label):
                        block.best[i], block.found[i] = squared, c


@kernel
def label_block(
    rows: Any,  # IN
    places: Any,  # IN  (m,) rows of the block
    given: Any,  # IN
    nominees: Any,  # IN  in one cell
    squares: Any,  # IN  (n,) ‖x − offset‖² of all rows
    block: Any,  # OUT `found` and `room`
) -> None:
    """The closest centre of every row of a block, exactly, and its room. O(m · C · D)."""
    m, q = places.shape[0], block.squares
    for i in range(m):
        q[i] = squares[places[i]]
    nominate(rows, places, places, given, nominees, 0, nominees.starts[1], block)
    judge_block(q[:m], block.lows[0], block.lows[1], nominees.bounds, block.room)
    n_doubtful = 0
    for i in range(m):
        block.doubtful[np.uint64(n_doubtful)] = i
        n_doubtful += not block.room[i] > 0
    for begin in range(0, n_doubtful, ROWS):
        some = block.doubtful[begin : min(begin + ROWS, n_doubtful)]
        check_rows(rows, places, places, given, nominees, 0, some, block)


@kernel
def lower_block(
    rows: Any,  # IN
    places: Any,  # IN  (m,) where the rows of the block lie
    numbers: Any,  # IN  (m,) entries of the rows in `best` and `labels`
    given: Any,  # IN
    nominees: Any,  # IN  the centres of a cell in ascending order
    cell: int,  # IN
    base: int,  # IN  the label of centre 0
    block: Any,  # scratch; OUT the scores as a table if there is room for one
    best: Any,  # IN/OUT (N,) squared distance to the centre of the label
    labels: Any,  # IN/OUT (N,) −1: none yet
) -> None:
    """Give rows to the closest centre of a cell, the lowest label on ties, if it is closer than their own.

    O(m · width · D)
    """
    low, next_low, bounds, members = block.lows[0], block.lows[1], nominees.bounds, nominees.members
    at = block.queue[: places.shape[0]]
    square_rows(rows, places, numbers, given, block)
    nominate(rows, at, numbers, given, nominees, nominees.starts[cell], nominees.starts[cell + 1], block)
    n_doubtful = 0
    for k in range(places.shape[0]):
        i, square, held = numbers[k], block.squares[k], np.inf
        own = labels[i]
        if own >= 0:
            held = best[i]
            if low[k] > highest_score(square, held, bounds):
                continue
        block.doubtful[n_doubtful] = k
        if square < bounds[Bound.LARGEST]:
            center = members[block.found[k]]
            squared = held
            if base + center != own:
                scale = given.scales[i] if given.scales.shape[0] else 1.0
                squared = squared_distance(rows, at[k], scale, nominees.centers, center, nominees.norms)
            if next_low[k] > highest_score(square, min(squared, held), bounds):
                if squared < held or own < 0:
                    best[i], labels[i] = squared, base + center
                continue
        n_doubtful += 1
    for begin in range(0, n_doubtful, ROWS):
        some = block.doubtful[begin : min(begin + ROWS, n_doubtful)]
        check_rows(rows, at, numbers, given, nominees, cell, some, block)
        for r in range(some.shape[0]):
            i, k = numbers[some[r]], some[r]
            if labels[i] < 0 or block.best[k] < best[i]:
                best[i], labels[i] = block.best[k], base + members[block.found[k]]
