"""How the votes of a batch change: sums of the rows that join and leave clusters, or the ballots themselves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, inline, kernel, take_number, twin
from globular.jit.memory import prefetch_row
from globular.model.columns import Ballots
from globular.model.nested import NestedStatistics
from globular.model.statistics import F64, I64
from globular.passes.cpu.assign.all import ROWS_PER_LABELLED_SPAN
from globular.passes.cpu.center_scores import RowProducts
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.engine.rows import add_row, squared_distance
from globular.passes.cpu.rows import CSRRows, KernelRows, on_tasks
from globular.passes.cpu.shard import CpuShard
from globular.passes.cpu.sums import cut_clusters, join_pieces
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


@inline
def add_four(x: Any, at: Any, i: int, weights: Any, scales: Any, origin: Any, sums: Any, totals: Any, c: int) -> None:
    """Rows i … i + 3 join one cluster: its sum is read and written once for all of them. O(D)."""
    scaled = scales.shape[0] > 0
    a0, a1, a2, a3 = at[i], at[i + 1], at[i + 2], at[i + 3]
    w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
    s0, s1 = scales[i] if scaled else 1.0, scales[i + 1] if scaled else 1.0
    s2, s3 = scales[i + 2] if scaled else 1.0, scales[i + 3] if scaled else 1.0
    total = 0.0
    for j in range(x.shape[1]):
        v0, v1 = s0 * x[a0, j] - origin[0, j], s1 * x[a1, j] - origin[0, j]
        v2, v3 = s2 * x[a2, j] - origin[0, j], s3 * x[a3, j] - origin[0, j]
        y0, y1, y2, y3 = w0 * v0, w1 * v1, w2 * v2, w3 * v3
        sums[c, j] += (y0 + y1) + (y2 + y3)
        total += (y0 * v0 + y1 * v1) + (y2 * v2 + y3 * v3)
    totals[c, 1] += total


@kernel
def sum_votes(
    queue: Queue,  # IN/OUT runs
    runs: Any,  # IN  (R, 3), see `sums.cut_runs`
    pieces: Any,  # IN  (P,)
    rows: Any,  # IN
    at: Any,  # IN  (n,) where the rows lie in `rows`
    labels: Any,  # IN  (n,) ascending
    weights: Any,  # IN  (n,) w of rows that join their clusters, −w of those that leave them
    scales: Any,  # IN  (n,) or empty
    origin: Any,  # IN  (1, D)
    origin_norm: Any,  # IN  (1,) its squared length
    totals: Any,  # OUT (C, 3) ± Σ w, ± Σ w ‖s x − origin‖², ± number of rows of positive weight
    sums: Any,  # IN/OUT (C, D) ± Σ w (s x − origin); of CSR rows ± Σ w s x
    piece_totals: Any,  # OUT (P, 3) the same of pieces
    piece_sums: Any,  # OUT (P, D)
) -> None:
    """accumulate(i) of Alg. 3, with the squares that sse needs. O(n · D) or O(nnz)."""
    run = take_number(queue)
    while run < runs.shape[0]:
        begin, end, piece = runs[run, 0], runs[run, 1], runs[run, 2]
        if piece >= 0:
            piece_totals[piece] = 0.0
            piece_sums[piece] = 0.0
            add_run(
                rows, at, labels, weights, scales, origin, origin_norm, begin, end, pieces[piece] - piece,
                piece_totals, piece_sums,
            )  # fmt: skip
        else:
            add_run(rows, at, labels, weights, scales, origin, origin_norm, begin, end, 0, totals, sums)
        run = take_number(queue)


@twin
def add_run(
    rows: Any, at: Any, labels: Any, weights: Any, scales: Any, origin: Any, origin_norm: Any, begin: int, end: int,
    base: int, totals: Any, sums: Any,
) -> None:  # fmt: skip
    """Rows begin … end − 1 to the sums of their labels less `base`. O(D) or O(nnz) each."""
    x = rows[0]
    for i in range(begin, end):
        totals[labels[i] - base, 0] += weights[i]
        totals[labels[i] - base, 2] += np.sign(weights[i])
    i = begin
    while i < end:
        c = labels[i] - base
        if i + 3 < end and labels[i + 3] == labels[i]:
            for k in range(i + 4, min(i + 8, end)):
                prefetch_row(x, at[k])
            add_four(x, at, i, weights, scales, origin, sums, totals, c)
            i += 4
            continue
        scale, total = scales[i] if scales.shape[0] else 1.0, 0.0
        for j in range(x.shape[1]):
            value = scale * x[at[i], j] - origin[0, j]
            sums[c, j] += weights[i] * value
            total += value * value
        totals[c, 1] += weights[i] * total
        i += 1


@add_run.for_csr
def _add_run(
    rows: Any, at: Any, labels: Any, weights: Any, scales: Any, origin: Any, origin_norm: Any, begin: int, end: int,
    base: int, totals: Any, sums: Any,
) -> None:  # fmt: skip
    for i in range(begin, end):
        c, weight = labels[i] - base, weights[i]
        scale = scales[i] if scales.shape[0] else 1.0
        totals[c, 0] += weight
        totals[c, 1] += weight * squared_distance(rows, at[i], scale, origin, 0, origin_norm)
        totals[c, 2] += np.sign(weight)
        add_row(rows, at[i], weight * scale, origin[0], sums, c)


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
    runs, pieces = cut_clusters(starts, ROWS_PER_LABELLED_SPAN)
    totals, sums = np.zeros((C, 3)), statistics.sums
    piece_totals, piece_sums = np.empty((len(pieces), 3)), np.empty((len(pieces), D))

    def add(queue: NDArray[np.int64], some: slice, loaded: KernelRows, at: NDArray[np.integer]) -> None:
        sum_votes(
            queue, runs[some], pieces, loaded, at, labels, weights, scales, about, about_norm, totals, sums,
            piece_totals, piece_sums,
        )  # fmt: skip

    on_tasks(shard.rows, rows, runs[:, 0], shard.n_threads, add)
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
