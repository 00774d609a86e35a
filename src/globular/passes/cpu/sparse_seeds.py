"""Greedy k-means++ on sparse rows: a seed lowers the distances of rows that share a column with it, and of no others.

d² = ‖x‖² + ‖s‖² − 2 x·s, and x·s is zero but for those rows, which an inverted file of the rows finds. A row that has
no column in common with any seed has ‖x‖² + min ‖s‖². So a draw costs as many products as its columns have entries, and
all rows are looked at only for the shortest seed so far. Draws are compared by what they gain for rows that share a
column with them: a text without words is closer to all others than most of these are to each other, but the mean of its
cluster will not be.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline, kernel
from globular.model.sparse_centers import SparseCenters, SparseSeeds
from globular.model.statistics import F64
from globular.passes.cpu.assign.sparse import taken
from globular.passes.cpu.engine.postings import square
from globular.passes.cpu.rows import CSRRows, read_only
from globular.passes.cpu.seeds import draw_row, zero_level
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN, error_runs, weighted_sum
from globular.seam.sparse_passes import SeedSparse

COMMON = 32
"""Columns that one row in 32 has play no part where draws are compared; larger = fewer take part, in less time."""
HALF_LOST = 2.0**-26
"""Share of what a difference is taken of below which it is not trusted: half of the digits are lost; larger = more rows
are compared entry by entry."""


class RowsByColumn(NamedTuple):
    """Rows by row and by column, scaled."""

    starts: Any  # (N + 1,)
    columns: Any  # (n,)
    values: Any  # (n,)
    begins: Any  # (D + 1,)
    holders: Any  # (n,) rows
    shares: Any  # (n,) their values
    squares: Any  # (N,) ‖x‖²
    zero: float  # squared distance up to which two rows are the same


class Shared(NamedTuple):
    """Scratch memory, and what seeds have left."""

    products: Any  # (N,) x·s of the rows found
    stamps: Any  # (N,) int64, zeros: which seed found a row last
    found: Any  # (N,) rows found
    least: Any  # (1,) min ‖s‖² over the seeds
    n_looks: Any  # (1,) int64, zeros


@kernel
def find_sharing(by_column: Any, seed: int, most: int, shared: Any) -> int:
    """Rows that share a column of at most so many entries with one, and their products; how many. O(these entries)."""
    n = 0
    shared.n_looks[0] += 1
    stamp = shared.n_looks[0]
    for k in range(by_column.starts[seed], by_column.starts[seed + 1]):
        value, j = np.float64(by_column.values[k]), by_column.columns[k]
        if by_column.begins[j + 1] - by_column.begins[j] > most:
            continue
        for q in range(by_column.begins[j], by_column.begins[j + 1]):
            i = by_column.holders[q]
            if shared.stamps[i] != stamp:
                shared.stamps[i] = stamp
                shared.products[i] = 0.0
                shared.found[n] = i
                n += 1
            shared.products[i] += value * by_column.shares[q]
    return n


@inline
def find_others(by_column: Any, n: int, shared: Any) -> int:
    """All other rows too, at products of zero; how many there are. O(N)."""
    for i in range(by_column.squares.shape[0]):
        if shared.stamps[i] != shared.n_looks[0]:
            shared.products[i] = 0.0
            shared.found[n] = i
            n += 1
    return n


@inline
def square_to(by_column: Any, i: int, seed: int, shared: Any) -> float:
    """‖x_i − s‖² of a row found."""
    total = by_column.squares[i] + by_column.squares[seed]
    found = total - 2.0 * shared.products[i]
    if found < HALF_LOST * total:
        found = square((by_column.values, by_column.columns, by_column.starts), i, 1.0, by_column, seed)
    return found if found > by_column.zero else 0.0


@inline
def sum_runs(d2: Any, weights: Any, length: int, begin: int, end: int, sums: Any) -> None:
    """Σ w d² of runs begin … end − 1. O(rows)."""
    for run in range(begin, end):
        first, last = run * length, min((run + 1) * length, d2.shape[0])
        sums[run] = weighted_sum(d2[first:last], weights[first:last])


@inline
def draw_by_error(share: float, length: int, d2: Any, weights: Any, sums: Any) -> int:
    """A row in proportion to w d²; −1 if there is none. O(runs + length)."""
    total = sums.sum()
    while total > 0.0:
        mass, run = share * total, 0
        while run < sums.shape[0] - 1 and mass >= sums[run]:
            mass -= sums[run]
            run += 1
        begin, end = run * length, min((run + 1) * length, d2.shape[0])
        row = draw_row(mass, d2[begin:end], weights[begin:end])
        if row >= 0:
            return begin + row
        sums[run] = 0.0  # what was left of it was rounding
        total = sums.sum()
    return -1


@kernel
def seed_sparse_rows(
    by_column: Any,  # IN
    weights: Any,  # IN  (N,) or empty; rows without weight are not drawn
    first: int,  # IN  the first seed; −1 where there are seeds
    draws: Any,  # IN  (seeds, trials)
    number: int,  # IN  of the first of these seeds
    length: int,  # IN  rows of a run
    d2: Any,  # IN/OUT (N,)
    seeds: Any,  # IN/OUT (N,)
    sums: Any,  # OUT (runs,) Σ w d²
    shared: Any,  # IN/OUT
    chosen: Any,  # OUT (seeds,) rows
) -> int:
    """Draw seeds until no distinct row is left; returns how many. O(seeds · trials · entries of a row's columns)."""
    sum_runs(d2, weights, length, 0, sums.shape[0], sums)
    for s in range(chosen.shape[0]):
        best, most = first, -1.0
        if s > 0 or first < 0:
            best = -1
            for t in range(draws.shape[1]):
                row, gain = draw_by_error(draws[s, t], length, d2, weights, sums), 0.0
                if row < 0:
                    return s
                for r in range(find_sharing(by_column, row, d2.shape[0] // COMMON, shared)):
                    i = shared.found[r]
                    rest = d2[i] - square_to(by_column, i, row, shared)
                    if rest > 0.0:
                        gain += rest * (weights[i] if weights.shape[0] else 1.0)
                if gain > most:
                    best, most = row, gain
        chosen[s] = best
        n_found = find_sharing(by_column, best, d2.shape[0], shared)
        if by_column.squares[best] < shared.least[0]:  # then it is closer to rows that share nothing with it, too
            n_found = find_others(by_column, n_found, shared)
        for r in range(n_found):
            i = shared.found[r]
            to_seed = square_to(by_column, i, best, shared)
            if to_seed < d2[i]:
                run, loss = i // length, (d2[i] - to_seed) * (weights[i] if weights.shape[0] else 1.0)
                d2[i] = to_seed
                seeds[i] = number + s
                sums[run] -= loss
                if sums[run] < HALF_LOST * loss:  # what is left may be rounding
                    sum_runs(d2, weights, length, run, run + 1, sums)
        if number + s == 0:
            sum_runs(d2, weights, length, 0, sums.shape[0], sums)
        shared.least[0] = min(shared.least[0], by_column.squares[best])
    return chosen.shape[0]


class Seeding(NamedTuple):
    """What one pass leaves to the next."""

    by_column: RowsByColumn
    shared: Shared


def _begin(shard: CpuShard) -> Seeding:
    rows, n = shard.rows, shard.n_rows
    assert isinstance(rows, CSRRows)
    matrix = rows.block(0, n)
    if len(shard.scales):
        matrix = matrix.multiply(shard.scales[:, None]).tocsr()
    columns, squares = matrix.tocsc(), SparseCenters(matrix.astype(np.float64, copy=False)).norms
    by_column = RowsByColumn(
        rows.indptr, rows.indices, read_only(matrix.data), columns.indptr.astype(np.int64),
        columns.indices.astype(np.int32), columns.data, squares, zero_level(shard),
    )  # fmt: skip
    shared = Shared(
        np.empty(n), np.zeros(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.full(1, np.inf),
        np.zeros(1, dtype=np.int64),
    )  # fmt: skip
    return Seeding(by_column, shared)


def _drawn_by(shard: CpuShard) -> F64:
    """Weights of the rows that may be seeds: those of zeros have no direction, where that is what counts."""
    if not len(shard.scales) or (shard.scales > 0).all() or not shard.scales.any():
        return shard.weights
    return np.where(shard.scales > 0, shard.weights if len(shard.weights) else 1.0, 0.0)


@CpuShard.implements(SeedSparse)
def seed_sparse(shard: CpuShard, work: SeedSparse) -> SparseSeeds:
    """On one thread: a seed depends on the last one, and costs less than it takes to wake another."""
    seeding, first, weights = shard.recall(Seeding), -1, _drawn_by(shard)
    if work.n_before == 0 or seeding is None:
        shard.squared_distances[:], shard.closest_seeds[:] = np.inf, -1
        seeding = _begin(shard)
        ends = np.cumsum(weights if len(weights) else np.ones(shard.n_rows))
        first = int(ends.searchsorted(min(work.draws[0, 0] * ends[-1], np.nextafter(ends[-1], 0)), side="right"))
    chosen, sums = np.empty(len(work.draws), dtype=np.int64), np.empty(-(-shard.n_rows // RUN))
    n_found = seed_sparse_rows(
        seeding.by_column, weights, first, work.draws, work.n_before, RUN, shard.squared_distances,
        shard.closest_seeds, sums, seeding.shared, chosen,
    )  # fmt: skip
    shard.error_runs = None
    shard.keep(seeding)
    seeds = chosen[:n_found].astype(np.intp)
    return SparseSeeds(seeds, taken(shard, seeds), float(error_runs(shard).sum()))
