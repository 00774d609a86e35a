"""Greedy k-means++ on sparse rows: a seed lowers the distances of rows that share a column with it, and of no others.

d² = ‖x‖² + ‖s‖² − 2 x·s, and x·s is zero but for those rows, which an inverted file of the rows finds. A row that has
no column in common with any seed has ‖x‖² + min ‖s‖². So a draw costs as many products as its columns have entries, and
all rows are looked at only for the shortest seed so far. Draws are compared by what they gain for rows that share a
column with them: a text without words is closer to all others than most of these are to each other, but the mean of its
cluster will not be.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, Zeros, inline, kernel, new_queue, share_kernel, take_number
from globular.model.sparse_centers import SparseSeeds
from globular.model.statistics import F64
from globular.passes.cpu.assign.sparse import taken
from globular.passes.cpu.engine.postings import square
from globular.passes.cpu.rows import CSRRows, read_only
from globular.passes.cpu.seeds import draw_row, zero_level
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN, error_runs, weighted_sum
from globular.seam.sparse_passes import SeedSparse
from globular.threads import SECONDS_PER_LOOK, SECONDS_PER_NUMBER, worth_waking

COMMON = 32
"""Columns that one row in 32 has play no part where draws are compared; larger = fewer take part, in less time."""
HALF_LOST = 2.0**-26
"""Share of what a difference is taken of below which it is not trusted: half of the digits are lost; larger = more rows
are compared entry by entry."""
SPAN = 8 * RUN
"""Rows of a span: threads share spans, and what is known of its rows stays in the cache; larger = longer lists."""


class RowsByColumn(NamedTuple):
    """Rows by row and by column, scaled; by column in spans of rows, which threads share."""

    starts: Any  # (N + 1,)
    columns: Any  # (n,)
    values: Any  # (n,)
    begins: Any  # (spans, D + 1)
    holders: Any  # (n,) rows
    shares: Any  # (n,) their values
    lengths: Any  # (D,) entries of each column
    squares: Any  # (N,) ‖x‖²
    zero: float  # squared distance up to which two rows are the same


class Sharing(NamedTuple):
    """Scratch memory of a thread, for the rows of a span."""

    products: Any  # (length,) x·s of the rows found
    stamps: Any  # (length,) int32, which look found a row last
    found: Any  # (length + 1,) int32 rows found, counted from the first one of the span


@kernel
def file_by_column(
    queue: Queue,  # IN/OUT spans
    length: int,  # IN  rows of a span
    rows: Any,  # IN  (data, indices, indptr)
    begins: Any,  # OUT (spans, D + 1) where the entries of each column begin
    holders: Any,  # OUT (n,) rows
    shares: Any,  # OUT (n,) their values
    squares: Any,  # OUT (N,) ‖x‖²
) -> None:
    """The entries of each span of rows by column, rows ascending. O(entries + spans · D)."""
    data, indices, indptr = rows
    s = take_number(queue)
    while s < begins.shape[0]:
        first, last = s * length, min((s + 1) * length, indptr.shape[0] - 1)
        ends = begins[s]
        for j in range(ends.shape[0]):
            ends[j] = 0
        for q in range(indptr[first], indptr[last]):
            ends[indices[q]] += 1
        total = indptr[first]
        for j in range(ends.shape[0]):
            ends[j], total = total, total + ends[j]
        for i in range(first, last):
            squares[i] = 0.0
            for q in range(indptr[i], indptr[i + 1]):
                squares[i] += np.float64(data[q]) * data[q]
                at = ends[indices[q]]
                holders[at], shares[at] = i, data[q]
                ends[indices[q]] = at + 1
        for j in range(ends.shape[0] - 1, 0, -1):  # where a column ends, the next one begins
            ends[j] = ends[j - 1]
        ends[0] = indptr[first]
        s = take_number(queue)


@inline
def find_sharing(by_column: Any, s: int, first: int, seed: int, most: int, look: int, sharing: Any) -> int:
    """Rows of span s that share a column of at most `most` entries with one, and their products; how many."""
    n, begins = 0, by_column.begins[s]
    for k in range(by_column.starts[seed], by_column.starts[seed + 1]):
        value, j = np.float64(by_column.values[k]), by_column.columns[k]
        if by_column.lengths[j] <= most:
            for q in range(begins[j], begins[j + 1]):
                r = by_column.holders[q] - first
                if sharing.stamps[r] != look:
                    sharing.stamps[r] = look
                    sharing.products[r] = 0.0
                    sharing.found[n] = r
                    n += 1
                sharing.products[r] += value * by_column.shares[q]
    return n


@inline
def find_others(n_rows: int, n: int, look: int, sharing: Any) -> int:
    """All other rows of a span too, at products of zero; how many there are. O(rows)."""
    for r in range(n_rows):
        if sharing.stamps[r] != look:
            sharing.products[r] = 0.0
            sharing.found[n] = r
            n += 1
    return n


@inline
def square_to(by_column: Any, i: int, seed: int, product: float) -> float:
    """‖x_i − s‖² by x_i·s, or by differences where that cancels."""
    total = by_column.squares[i] + by_column.squares[seed]
    found = total - 2.0 * product
    if found < HALF_LOST * total:
        found = square((by_column.values, by_column.columns, by_column.starts), i, 1.0, by_column, seed)
    return found if found > by_column.zero else 0.0


@inline
def sum_run(d2: Any, weights: Any, run: int) -> float:
    """Σ w d² of a run."""
    first, last = run * RUN, min((run + 1) * RUN, d2.shape[0])
    return weighted_sum(d2[first:last], weights[first:last])


@inline
def draw_by_error(share: float, d2: Any, weights: Any, sums: Any) -> int:
    """A row in proportion to w d²; −1 if there is none. O(runs + rows of a run)."""
    mass, run = share * sums.sum(), 0
    while run < sums.shape[0] - 1 and mass >= sums[run]:
        mass -= sums[run]
        run += 1
    for _ in range(sums.shape[0]):
        begin, end = run * RUN, min((run + 1) * RUN, d2.shape[0])
        row = draw_row(mass, d2[begin:end], weights[begin:end])
        if row >= 0:
            return begin + row
        run, mass = (run + 1) % sums.shape[0], 0.0  # what was left of this run was rounding
    return -1


@kernel
def draw_rows(
    queue: Queue,  # IN/OUT draws
    shares: Any,  # IN  (draws,) in [0, 1)
    d2: Any,  # IN  (N,)
    weights: Any,  # IN  (N,) or empty; rows without weight are not drawn
    sums: Any,  # IN  (runs,) Σ w d²
    drawn: Any,  # OUT (draws,) rows; −1 where none is left
) -> None:
    """Draw rows in proportion to w d². O(draws · (runs + rows of a run))."""
    t = take_number(queue)
    while t < shares.shape[0]:
        drawn[t] = draw_by_error(shares[t], d2, weights, sums)
        t = take_number(queue)


@kernel
def weigh_draws(
    queue: Queue,  # IN/OUT spans, and draws in each
    length: int,  # IN  rows of a span
    by_column: Any,  # IN
    drawn: Any,  # IN  (draws,) rows
    look: int,  # IN  larger than any number of a look before
    weights: Any,  # IN  (N,) or empty
    d2: Any,  # IN  (N,)
    products: Scratch,  # scratch (length,)
    stamps: Zeros,  # scratch (length,) int32, zeros at first
    found: Scratch,  # scratch (length + 1,) int32
    gains: Any,  # OUT (spans, draws) Σ w by how much d² would fall
) -> None:
    """What each draw would gain for the rows that share a column with it. O(draws · entries of a row's columns)."""
    number, most = take_number(queue), d2.shape[0] // COMMON
    while number < gains.size:
        s, t = divmod(number, drawn.shape[0])
        gain, first = 0.0, s * length
        sharing = Sharing(products, stamps, found)
        for q in range(find_sharing(by_column, s, first, drawn[t], most, look + number, sharing)):
            i = first + found[q]
            rest = max(0.0, d2[i] - square_to(by_column, i, drawn[t], products[found[q]]))
            gain += rest * (weights[i] if weights.shape[0] else 1.0)
        gains[s, t] = gain
        number = take_number(queue)


@kernel
def take_seed(
    queue: Queue,  # IN/OUT spans
    length: int,  # IN  rows of a span
    by_column: Any,  # IN
    seed: int,  # IN  row
    number: int,  # IN  of the seed
    is_shortest: bool,  # IN  of all seeds so far: then it is closer to rows that share nothing with it, too
    look: int,  # IN  larger than any number of a look before
    weights: Any,  # IN  (N,) or empty
    d2: Any,  # IN/OUT (N,)
    seeds: Any,  # IN/OUT (N,)
    sums: Any,  # IN/OUT (runs,) Σ w d²
    products: Scratch,  # scratch (length,)
    stamps: Zeros,  # scratch (length,) int32, zeros at first
    found: Scratch,  # scratch (length + 1,) int32
) -> None:
    """Lower the squared distances of the rows that are closer to a seed. O(entries of a row's columns)."""
    s = take_number(queue)
    while s < by_column.begins.shape[0]:
        first, last = s * length, min((s + 1) * length, d2.shape[0])
        sharing = Sharing(products, stamps, found)
        n_found = find_sharing(by_column, s, first, seed, d2.shape[0], look + s, sharing)
        if is_shortest:
            n_found = find_others(last - first, n_found, look + s, sharing)
        for q in range(n_found):
            i = first + found[q]
            to_seed = square_to(by_column, i, seed, products[found[q]])
            if to_seed < d2[i]:
                run, loss = i // RUN, (d2[i] - to_seed) * (weights[i] if weights.shape[0] else 1.0)
                d2[i] = to_seed
                seeds[i] = number
                sums[run] -= loss
                if sums[run] < HALF_LOST * loss and number > 0:  # what is left may be rounding
                    sums[run] = sum_run(d2, weights, run)
        if number == 0:
            for run in range(first // RUN, -(-last // RUN)):
                sums[run] = sum_run(d2, weights, run)
        s = take_number(queue)


class Seeding(NamedTuple):
    """What one pass leaves to the next."""

    by_column: RowsByColumn
    length: int  # rows of a span
    sharing: Sharing
    sums: F64  # (runs,) Σ w d²
    least: float  # min ‖s‖² over the seeds
    look: int  # number of the next look


def _begin(shard: CpuShard) -> Seeding:
    rows, n, D = shard.rows, shard.n_rows, shard.n_columns
    assert isinstance(rows, CSRRows)
    matrix = rows.block(0, n)
    if len(shard.scales):
        matrix = matrix.multiply(shard.scales[:, None]).tocsr()
    length = min(n, SPAN)
    begins = np.empty((-(-n // length), D + 1), dtype=np.int64)
    holders, shares, squares = np.empty(matrix.nnz, dtype=np.int32), np.empty_like(matrix.data), np.empty(n)
    of_kernel, queue = (read_only(matrix.data), rows.indices, rows.indptr), new_queue()
    share_kernel(
        lambda: file_by_column(queue, length, of_kernel, begins, holders, shares, squares), queue,
        min(worth_waking(shard.n_threads, SECONDS_PER_LOOK * matrix.nnz), len(begins)), calls_blas=False,
    )  # fmt: skip
    by_column = RowsByColumn(
        rows.indptr, rows.indices, of_kernel[0], begins, holders, shares, np.diff(begins, axis=1).sum(axis=0), squares,
        zero_level(shard),
    )  # fmt: skip
    sharing = Sharing(np.empty(length), np.zeros(length, dtype=np.int32), np.empty(length + 1, dtype=np.int32))
    return Seeding(by_column, length, sharing, np.empty(-(-n // RUN)), np.inf, 1)


def _drawn_by(shard: CpuShard) -> F64:
    """Weights of the rows that may be seeds: those of zeros have no direction, where that is what counts."""
    if not len(shard.scales) or (shard.scales > 0).all() or not shard.scales.any():
        return shard.weights
    return np.where(shard.scales > 0, shard.weights if len(shard.weights) else 1.0, 0.0)


def _chosen(
    shard: CpuShard, seeding: Seeding, weights: F64, first: int, draws: F64, n_before: int
) -> tuple[list[int], Seeding]:
    """Seeds, until no distinct row is left, and what they leave to the next; `first` is −1 where there are some.

    Spans are shared by as many threads as their work is worth waking, which the first pass over the entries tells.
    """
    by_column, length, sharing, sums, least, look = seeding
    d2, seeds, n, lengths = shard.squared_distances, shard.closest_seeds, shard.n_rows, by_column.lengths.astype(float)
    n_trials, n_spans = draws.shape[1], len(by_column.begins)
    drawn, gains = np.empty(n_trials, dtype=np.int64), np.empty((n_spans, n_trials))
    rare = lengths[lengths <= n // COMMON]
    to_draw = worth_waking(shard.n_threads, SECONDS_PER_NUMBER * n_trials * min(RUN, n))
    to_weigh = worth_waking(shard.n_threads, SECONDS_PER_LOOK * n_trials * (rare @ rare) / n)
    to_take = min(n_spans, worth_waking(shard.n_threads, SECONDS_PER_LOOK * (lengths @ lengths) / n))

    def draw(queue: NDArray[np.int64], shares: F64) -> None:
        draw_rows(queue, shares, d2, weights, sums, drawn)

    def weigh(queue: NDArray[np.int64]) -> None:
        weigh_draws(queue, length, by_column, drawn, look, weights, d2, *sharing, gains)

    def take(queue: NDArray[np.int64]) -> None:
        take_seed(queue, length, by_column, seed, number, is_shortest, look, weights, d2, seeds, sums, *sharing)

    found: list[int] = []
    for number, shares in enumerate(draws, n_before):
        seed = first
        if number > n_before or first < 0:
            share_kernel(partial(draw, queue := new_queue(), shares), queue, to_draw, calls_blas=False)
            if drawn.min() < 0:
                break
            share_kernel(partial(weigh, queue := new_queue()), queue, to_weigh, calls_blas=False)
            seed = int(drawn[gains.sum(axis=0).argmax()])
            look += gains.size
        is_shortest = bool(by_column.squares[seed] < least)
        share_kernel(partial(take, queue := new_queue()), queue, to_take, calls_blas=False)
        look, least = look + n_spans, min(least, float(by_column.squares[seed]))
        found.append(seed)
    return found, seeding._replace(least=least, look=look)


@CpuShard.implements(SeedSparse)
def seed_sparse(shard: CpuShard, work: SeedSparse) -> SparseSeeds:
    seeding, first, weights = shard.recall(Seeding), -1, _drawn_by(shard)
    if work.n_before == 0 or seeding is None:
        shard.squared_distances[:], shard.closest_seeds[:] = np.inf, -1
        seeding = _begin(shard)
        ends = np.cumsum(weights if len(weights) else np.ones(shard.n_rows))
        first = int(ends.searchsorted(min(work.draws[0, 0] * ends[-1], np.nextafter(ends[-1], 0)), side="right"))
    found, seeding = _chosen(shard, seeding, weights, first, work.draws, work.n_before)
    shard.error_runs = None
    if work.is_last:
        shard.forget(Seeding)  # as large as the rows
    else:
        shard.keep(seeding)
    seeds = np.array(found, dtype=np.intp)
    return SparseSeeds(seeds, taken(shard, seeds), float(error_runs(shard).sum()))
