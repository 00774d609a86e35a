"""Scores of rows with centres: squared distances, fast but rounded.

A score is ‖m‖² − 2 x·m + ‖x‖² about an offset. The two lowest of each row come from tiles of centres (`jit.tiles`), or
from the nonzeros of CSR rows; whoever needs all scores of a row gets a table of them too. Centres may be in cells, of
which a row is compared with one; cells begin with whole tiles, padded by centres that are too far away to be nominated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import inline, kernel, kernel_apart, twin
from globular.jit.memory import as_matrix, as_read_only, float_bits, prefetch_row
from globular.jit.tiles import ROWS, lowest_of_rows, lowest_of_scores
from globular.jit.vectors import LINE, add_1_line, add_2_lines, add_4_lines, add_8_lines
from globular.passes.cpu.engine.rows import fetch, multiply_csr_row, row_length, squared_distance

CENTER_CHUNK = 1024
"""Most centres that a block of rows looks at before it looks at the next ones."""
CACHED = 1 << 18
"""Bytes of centres that a block of rows looks at before it looks at the next ones: they stay in the cache."""
ROWS_PER_BLOCK = 256
"""Rows that are labelled together."""
STRETCH = 4096
"""Rows that are looked through for those to be labelled before these are."""
AHEAD = 2 * ROWS
"""Rows to ask for before they are read."""


class Given(NamedTuple):
    """What is known of every row."""

    weights: Any  # (n,) or empty
    scales: Any  # (n,) or empty
    offset: Any  # (D,) subtracted from dense rows; empty if there is none
    about: Any  # (1, D) the same, or zeros
    about_norm: Any  # (1,) its squared length where rows are sparse: 0

    def of(self, part: slice) -> Given:
        """The same of some of the rows."""
        return self._replace(weights=self.weights[part], scales=self.scales[part])


class Visit(NamedTuple):
    """Rows in tasks, each of which visits one cell of centres."""

    tasks: Any  # (T, 3) (cell, begin, end): the rows order[begin:end] visit this cell
    rows: Any  # see `engine.rows`
    order: Any  # (N,) row numbers in the order of tasks
    places: Any  # (N,) where these lie in `rows`
    given: Any  # by row number


class Nominees(NamedTuple):
    """Centres ready to be scored, each at one of K positions; the others are too far away."""

    centers: Any  # (C, D) float64
    norms: Any  # (C,) ‖m‖² float64, for CSR rows
    factors: Any  # (K / width, D, width), for CSR rows (1, D, K): −2 (m − offset) in the rows' dtype
    score_norms: Any  # (K,) ‖m − offset‖² in the rows' dtype
    mask: Any  # (1,) the bits of a key that belong to its score, as wide as a score
    bounds: Any  # in the rows' dtype, see `Bound`
    members: Any  # (K,) the centre at each position
    starts: Any  # (cells + 1,) where each cell begins, with a whole tile
    ends: Any  # (cells,) where it ends


class Bounds(NamedTuple):
    """What the bounds of scores are."""

    TRUNCATED: int = 0  # share of a score that the mask of keys cuts off, at most
    PER_PRODUCT: int = 1  # rounding of a score, by ‖x‖ ‖m‖
    PER_SQUARE: int = 2  # the same by squared lengths
    TINY: int = 3  # the same by underflow
    LARGEST: int = 4  # ‖x‖² from which scores may overflow
    NOBODY: int = 5  # a norm of centres that are none


Bound = Bounds()
"""Plain numbers: numba 0.61 takes no enumeration as an index."""


class Block(NamedTuple):
    """Scratch memory of a thread for a block of B rows; n = B + ROWS."""

    queue: Any  # (n + STRETCH,) rows that wait for a block
    copies: Any  # (n, D) the rows about the offset and scaled, where they differ from the rows as they lie
    order: Any  # (n,) 0, 1, …
    squares: Any  # (n,)
    lows: Any  # (2, n) the two lowest scores
    chunk_lows: Any  # (2, n) those of a chunk of centres
    nominated: Any  # (n,) int32, the position of the first of these
    room: Any  # (n,) float32
    found: Any  # (n,) int32, a position
    best: Any  # (B,) float64
    doubtful: Any  # (n,) places in the block of rows whose scores do not decide
    again: Any  # (ROWS,) some of these rows
    again_squares: Any  # (ROWS,)
    scores: Any  # (ROWS, chunk) their scores
    table: Any  # as a line: the scores of a block, with `ROWS` rows to spare, where they are wanted


def chunk_of(n_positions: int, n_columns: int, itemsize: int, step: int, *, across: bool) -> int:
    """Centres that a block of rows looks at before it looks at the next ones."""
    fitting = CENTER_CHUNK if across else CACHED // (n_columns * itemsize)
    return max(step, min(n_positions, CENTER_CHUNK, fitting) // step * step)


def bounds_for(dtype: np.dtype, n_columns: int, n_terms: int, chunk: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The bounds of scores that are sums of `n_terms`, but for the largest; and the mask of their keys."""
    info, bits = np.finfo(dtype), (chunk - 1).bit_length()
    bounds = np.zeros(len(Bound), dtype=dtype)
    bounds[Bound.TRUNCATED] = 1.001 * 2.0 ** (bits - info.nmant)
    bounds[Bound.PER_PRODUCT] = (n_terms + 8) * float(info.eps) * 1.001
    bounds[Bound.PER_SQUARE] = 8 * float(info.eps) + (n_columns + 8) * 2.0**-52
    bounds[Bound.TINY] = (n_terms + 8) * 8 * float(info.tiny)
    bounds[Bound.NOBODY] = 0.0625 / float(info.tiny)
    return bounds, np.array([-1 << bits], dtype=f"i{dtype.itemsize}")


def set_largest(bounds: NDArray[Any], longest: float) -> None:
    """Scores of longer rows may overflow, and those of too many terms say nothing: such rows are compared exactly.

    `longest` is the largest ‖m − offset‖².
    """
    reach = 0.5 * float(bounds[Bound.NOBODY]) ** 0.5 - longest**0.5
    bounds[Bound.LARGEST] = reach * reach if reach > 0.0 and bounds[Bound.PER_PRODUCT] < 0.1 else 0.0


def new_block(given: Given, dtype: np.dtype, chunk: int, *, across: bool, n: int = 0, table: int = 0) -> Block:
    """Scratch memory for one thread and blocks of `n` rows; the size of a block changes no result."""
    n = n or ROWS_PER_BLOCK
    B, n, D = n, n + ROWS, given.about.shape[1]
    is_copied = len(given.scales) or len(given.offset)
    return Block(
        np.empty(n + STRETCH, dtype=np.int64), np.empty((n if is_copied and not across else 0, D), dtype=dtype),
        np.empty(n, dtype=np.int64), np.empty(n, dtype=dtype), np.empty((2, n), dtype=dtype),
        np.empty((2, n), dtype=dtype), np.empty(n, dtype=np.int32), np.empty(n, dtype=np.float32),
        np.empty(n, dtype=np.int32), np.empty(B), np.empty(n, dtype=np.int64), np.empty(ROWS, dtype=np.int64),
        np.empty(ROWS, dtype=dtype), np.empty((ROWS, chunk), dtype=dtype), np.empty(table, dtype=dtype),
    )  # fmt: skip


@kernel
def copy_block(
    x: Any,  # IN  (n, D)
    places: Any,  # IN  (m,)
    numbers: Any,  # IN  (m,) those of the rows, by which they are scaled
    given: Any,  # IN
    block: Any,  # OUT copies: rows about the offset, or scaled; and their order
) -> None:
    """The rows of a block, together. O(m · D)."""
    copies, T = block.copies, block.copies.dtype.type
    for i in range(places.shape[0]):
        row, block.order[i] = places[i], i
        if i + AHEAD < places.shape[0]:
            prefetch_row(x, places[i + AHEAD])
        if given.scales.shape[0]:
            for j in range(x.shape[1]):
                copies[i, j] = T(given.scales[numbers[i]] * x[row, j])
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
    first: int,  # IN  positions first … stop − 1
    stop: int,  # IN
    fetched: bool,  # IN  whether the rows are in the cache
    scores: Any,  # OUT (≥ m + ROWS, ≥ stop − first), or (ROWS, ·) for no more rows; or empty
    lows: Any,  # OUT (2, ≥ m + ROWS)
    nominated: Any,  # OUT (≥ m + ROWS,)
) -> None:
    """The two lowest scores of dense rows. O(m · chunk · D)."""
    mask, nobody = nominees.mask[0], float_bits(nominees.bounds[Bound.NOBODY])
    low, next_low = lows[0], lows[1]
    for i in range(0, places.shape[0], ROWS):
        if not fetched:
            for ahead in range(min(i + AHEAD, places.shape[0]), min(i + AHEAD + ROWS, places.shape[0])):
                prefetch_row(x, places[ahead])
        lowest_of_rows(
            x, places, i, squares, nominees.factors, nominees.score_norms, first, stop, mask, nobody, scores[i:],
            low, next_low, nominated,
        )  # fmt: skip


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


@twin
def nominate_block(
    rows: Any, places: Any, numbers: Any, given: Any, nominees: Any, first: int, stop: int, fetched: bool, block: Any,
    scores: Any, lows: Any, nominated: Any,
) -> None:  # fmt: skip
    """The two lowest scores of the rows at `places` among positions first … stop − 1. O(m · chunk · D) or O(nnz)."""
    m = places.shape[0]
    x, lie_at = rows[0], places
    if not as_they_lie(given):
        if not fetched:
            copy_block(rows[0], places, numbers, given, block)
        x, lie_at = as_read_only(block.copies), block.order[:m]
    nominate_rows(x, lie_at, block.squares[:m], nominees, first, stop, fetched, scores, lows, nominated)


@nominate_block.for_csr
def _nominate_block(
    rows: Any, places: Any, numbers: Any, given: Any, nominees: Any, first: int, stop: int, fetched: bool, block: Any,
    scores: Any, lows: Any, nominated: Any,
) -> None:  # fmt: skip
    mask, nobody = nominees.mask[0], float_bits(nominees.bounds[Bound.NOBODY])
    low, next_low = lows[0], lows[1]
    for i in range(places.shape[0]):
        line = scores[i] if scores.shape[0] else block.scores[0]
        scale = given.scales[numbers[i]] if given.scales.shape[0] else 1.0
        csr_scores_of_row(rows, places[i], scale, block.squares[i], nominees, first, stop, line)
        lowest_of_scores(line, i, first, stop, mask, nobody, low, next_low, nominated)


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
def nominate(
    rows: Any,  # IN
    places: Any,  # IN  (m,) where the rows of a block lie
    numbers: Any,  # IN  (m,)
    given: Any,  # IN
    nominees: Any,  # IN
    first: int,  # IN  positions first … stop − 1, whole tiles
    stop: int,  # IN
    block: Any,  # IN squares; OUT lows and found, and the scores as a table (m, stop − first) if there is room for one
) -> None:
    """The two lowest scores of the rows of a block. O(m · width · D) or O(nnz · width)."""
    m, chunk, width = places.shape[0], block.scores.shape[1], stop - first
    n_scores = m + ROWS if block.table.shape[0] else 0
    lows, nominated = block.lows, block.found
    for begin in range(first, stop, chunk):
        scores = as_matrix(block.table[min(begin - first, block.table.shape[0]) :], n_scores, width)
        nominate_block(
            rows, places, numbers, given, nominees, begin, min(begin + chunk, stop), begin > first, block, scores, lows,
            nominated,
        )  # fmt: skip
        if begin > first:
            merge_chunk(
                block.chunk_lows[0], block.chunk_lows[1], block.nominated, block.lows[0, :m], block.lows[1, :m],
                block.found,
            )  # fmt: skip
        lows, nominated = block.chunk_lows, block.nominated


@inline
def square_rows(rows: Any, places: Any, numbers: Any, given: Any, block: Any) -> None:
    """Squares ‖x − offset‖² of the rows of a block, and as its queue their places. O(m · D) or O(nnz)."""
    for k in range(places.shape[0]):
        if k + ROWS < places.shape[0]:
            fetch(rows, places[k + ROWS])
        block.queue[k] = places[k]
        scale = given.scales[numbers[k]] if given.scales.shape[0] else 1.0
        block.squares[k] = squared_distance(rows, places[k], scale, given.about, 0, given.about_norm)


@inline
def rows_for_table(block: Any, width: int) -> int:
    """Rows whose scores with some centres fit into the table of a block."""
    return min(block.best.shape[0], block.table.shape[0] // width - ROWS)


@kernel
def score_block(
    rows: Any,  # IN
    places: Any,  # IN  (m,) where the rows lie
    numbers: Any,  # IN  (m,)
    given: Any,  # IN
    nominees: Any,  # IN
    first: int,  # IN  positions first … stop − 1, whole tiles
    stop: int,  # IN
    block: Any,  # OUT
) -> None:
    """The scores of a block of rows as a table (m, stop − first). O(m · width · D) or O(nnz · width)."""
    at = block.queue[: places.shape[0]]
    square_rows(rows, places, numbers, given, block)
    nominate(rows, at, numbers, given, nominees, first, stop, block)


@twin
def score_again(
    rows: Any, doubtful: Any, numbers: Any, given: Any, nominees: Any, first: int, stop: int, block: Any
) -> None:
    """The scores of the rows block.again, the `doubtful` ones of a block. O(chunk · D) or O(chunk · nnz)."""
    n = doubtful.shape[0]
    x, lie_at = rows[0], block.again[:n]
    if not as_they_lie(given):
        x, lie_at = as_read_only(block.copies), doubtful
    nominate_rows(
        x, lie_at, block.again_squares[:n], nominees, first, stop, True, block.scores, block.chunk_lows, block.nominated
    )


@score_again.for_csr
def _score_again(
    rows: Any, doubtful: Any, numbers: Any, given: Any, nominees: Any, first: int, stop: int, block: Any
) -> None:
    for r in range(doubtful.shape[0]):
        row = block.again[r]
        scale = given.scales[numbers[doubtful[r]]] if given.scales.shape[0] else 1.0
        csr_scores_of_row(rows, row, scale, block.again_squares[r], nominees, first, stop, block.scores[r])


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
