"""How the votes of a batch change: sums of the rows that join and leave clusters, or the ballots themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from globular.backends.cpu.center_scores import RowProducts, entries_of, in_place
from globular.backends.cpu.rows import CSRRows
from globular.backends.cpu.shard import CpuShard
from globular.kernels.votes import sum_sparse_votes, sum_votes
from globular.model.columns import Ballots
from globular.model.groups import group_by
from globular.model.nested import NestedStatistics
from globular.model.statistics import F64, I64
from globular.seam.passes import Labels
from globular.threads import even_ranges, map_all

ROWS_PER_SUM = 1024


class Moves(NamedTuple):
    """Rows of a batch that join and leave clusters."""

    rows: I64
    positions: I64
    """Where they are in the batch."""
    labels: Labels
    n_joining: int
    """The first ones join, the others leave."""


def add_votes(shard: CpuShard, moves: Moves, origin: F64, statistics: NestedStatistics) -> None:
    """Let rows join or leave their clusters: whole clusters at a time, large ones in pieces added in order."""
    D, counts = shard.n_columns, np.zeros_like(statistics.counts)
    starts, order = group_by(moves.labels, len(counts))
    rows, labels = moves.rows[order], moves.labels[order]
    weights = np.where(order < moves.n_joining, 1.0, -1.0)
    if len(shard.weights):
        weights *= shard.weights[rows]
    about, about_norm = origin[None, :].copy(), np.array([origin @ origin])

    def add(span: slice, base: int, sums: F64, totals: F64, squares: F64, sizes: I64) -> None:
        block, at = in_place(shard.rows, rows[span])
        given = labels[span], weights[span], entries_of(shard.scales, rows[span])
        if len(block) == 1:
            sum_votes(block[0], at, *given, origin, base, sums, totals, squares, sizes)
        else:
            sum_sparse_votes(block, at, *given, about, about_norm, base, sums, totals, squares, sizes)

    def task(run: _Run) -> Callable[[], None]:
        span = slice(run.begin, run.end)
        if run.cluster < 0:
            add(span, 0, statistics.sums, counts, statistics.squares, statistics.sizes)
            return lambda: None
        sums, totals, squares, sizes = np.zeros((1, D)), np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64)
        add(span, run.cluster, sums, totals, squares, sizes)

        def join() -> None:
            statistics.sums[run.cluster] += sums[0]
            counts[run.cluster] += totals[0]
            statistics.squares[run.cluster] += squares[0]
            statistics.sizes[run.cluster] += sizes[0]

        return join

    for join in map_all(task, _runs(starts), shard.n_threads):
        join()
    statistics.counts += counts
    if isinstance(shard.rows, CSRRows) and origin.any():
        statistics.sums -= counts[:, None] * origin


class _Run(NamedTuple):
    begin: int
    end: int
    cluster: int
    """The cluster of which this is a piece; −1 for a run of whole clusters."""


def _runs(starts: I64) -> list[_Run]:
    """Cut rows grouped by cluster into runs of whole clusters and pieces of those too large for a run."""
    runs = []
    cluster, n_clusters = 0, len(starts) - 1
    while cluster < n_clusters:
        begin = int(starts[cluster])
        # the last cluster that still ends within the run
        last = int(np.searchsorted(starts, begin + ROWS_PER_SUM, side="right")) - 1
        if last > cluster:
            if starts[last] > begin:
                runs.append(_Run(begin, int(starts[last]), -1))
            cluster = last
        else:
            spans = even_ranges(int(starts[cluster + 1]) - begin, ROWS_PER_SUM)
            runs += [_Run(begin + a, begin + b, cluster) for a, b in spans]
            cluster += 1
    return runs


def cast_ballots(shard: CpuShard, moves: Moves, products: RowProducts, statistics: NestedStatistics) -> None:
    """Let sparse rows join or leave clusters; their sums are left to whoever keeps the centres. O(moves)."""
    C, joining = len(statistics.counts), np.arange(len(moves.rows)) < moves.n_joining
    signs = np.where(joining, 1.0, -1.0)
    weights = signs * shard.weights[moves.rows] if len(shard.weights) else signs
    factors = weights * shard.scales[moves.rows] if len(shard.scales) else weights
    lengths = products.lengths[moves.positions]
    if len(shard.scales):
        lengths = shard.scales[moves.rows] * lengths
    with_centers = np.where(joining, products.own[moves.positions], products.former[moves.positions])

    def sums(values: F64) -> F64:
        return np.asarray(np.bincount(moves.labels, values, minlength=C), dtype=np.float64)

    statistics.counts += sums(weights)
    statistics.squares += sums(weights * lengths * lengths)
    statistics.sizes += sums(np.sign(weights)).astype(np.int64)
    block, at = in_place(shard.rows, moves.rows)
    statistics.ballots = Ballots(block, at, moves.labels, factors, sums(factors * with_centers))
