"""How the votes of a batch change: sums of the rows that join and leave clusters, or the ballots themselves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.kernels.sums import join_pieces
from globular.kernels.votes import sum_votes
from globular.model.columns import Ballots
from globular.model.groups import group_by
from globular.model.nested import NestedStatistics
from globular.model.statistics import F64, I64
from globular.passes.cpu.assign.all import ROWS_PER_SPAN
from globular.passes.cpu.center_scores import RowProducts
from globular.passes.cpu.rows import CSRRows, KernelRows, can_be_indexed, gather_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.cpu.sums import cut_clusters
from globular.passes.host import ROWS_AT_ONCE
from globular.seam.passes import Labels
from globular.threads import SECONDS_PER_LOOK, even_ranges, run_all


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
    D, C, n = shard.n_columns, len(statistics.counts), len(moves.rows)
    starts, order = group_by(moves.labels, C, shard.n_threads)
    rows, labels, weights = np.empty_like(moves.rows), np.empty_like(moves.labels), np.empty(n)

    def pick(span: tuple[int, int]) -> None:
        some = slice(*span)
        part = order[some]
        rows[some], labels[some] = moves.rows[part], moves.labels[part]
        weights[some] = np.where(part < moves.n_joining, 1.0, -1.0)
        if len(shard.weights):
            weights[some] *= shard.weights[rows[some]]

    run_all(pick, even_ranges(n, ROWS_AT_ONCE), shard.n_threads, seconds=SECONDS_PER_LOOK * n, calls_blas=False)
    scales = shard.scales[rows] if len(shard.scales) else shard.scales
    about, about_norm = origin[None, :].copy(), np.array([origin @ origin])
    runs, pieces = cut_clusters(starts, ROWS_PER_SPAN)
    totals, sums = np.zeros((C, 3)), statistics.sums
    piece_totals, piece_sums = np.empty((len(pieces), 3)), np.empty((len(pieces), D))

    def add(queue: NDArray[np.int64], runs: NDArray[np.int64], loaded: KernelRows, at: I64, part: slice) -> None:
        sum_votes(
            queue, runs, pieces, loaded, at, labels[part], weights[part], scales[part], about, about_norm, totals,
            sums, piece_totals, piece_sums,
        )  # fmt: skip

    if can_be_indexed(shard.rows):
        queue, loaded = new_queue(), shard.rows.kernel_rows(0, shard.n_rows)
        threads = min(shard.n_threads, len(runs))
        share_kernel(lambda: add(queue, runs, loaded, rows, slice(0, n)), queue, threads, calls_blas=False)
    else:

        def gathered(run: int) -> None:
            begin, end, piece = runs[run]
            loaded, one = gather_rows(shard.rows, rows[begin:end]), np.array([[0, end - begin, piece]])
            add(new_queue(), one, loaded, np.arange(end - begin), slice(begin, end))

        run_all(gathered, range(len(runs)), shard.n_threads)
    join_pieces(pieces, piece_totals, piece_sums, totals, sums)
    counts, squares, sizes = totals.T
    statistics.counts += counts
    statistics.squares += squares
    statistics.sizes += sizes.astype(np.int64)
    if isinstance(shard.rows, CSRRows) and origin.any():
        statistics.sums -= counts[:, None] * origin


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
    block = shard.rows.kernel_rows(0, shard.n_rows)
    statistics.ballots = Ballots(block, moves.rows, moves.labels, factors, sums(factors * with_centers))
