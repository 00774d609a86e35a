"""Sums of rows by their labels, the same bits for any number of threads.

Few sums are taken block by block; many in cluster order over a counting sort of the labels, without buffers per thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.kernels import sums as kernels
from globular.model.groups import group_by, order_by
from globular.model.statistics import F64, HardStatistics
from globular.passes.cpu.grouped import ROWS_PER_TASK, Grouping
from globular.passes.cpu.rows import DenseRows, KernelRows, can_be_indexed, gather_rows, on_spans
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import CACHED_NUMBERS, NONE, SEARCHED_AT_ONCE
from globular.seam.passes import Assign, Labels, SumByLabel
from globular.threads import SECONDS_PER_NUMBER, SECONDS_PER_PAIR, run_all, worth_waking

ROWS_PER_RUN = 16384
"""Longest run of rows that one task sums; longer clusters are cut, and the pieces added in order."""
SPANS = 64
"""Most spans of rows that have sums of their own."""


def wanted_sums(shard: CpuShard, work: Assign, grouping: Grouping | None = None) -> tuple[F64, F64]:
    """Sums and counts of a pass that has set the labels, if it wants any; `grouping` as in `cluster_sums`."""
    if work.want == "labels":
        return np.empty((0, shard.n_columns)), np.empty(0)
    return cluster_sums(shard, len(work.centers), grouping)


@CpuShard.implements(SumByLabel)
def sum_by_label(shard: CpuShard, work: SumByLabel) -> HardStatistics:
    return HardStatistics(*cluster_sums(shard, work.n_clusters), 0.0, 0, 0)


def cluster_sums(shard: CpuShard, n_clusters: int, grouping: Grouping | None = None) -> tuple[F64, F64]:
    """Σ w x and Σ w per label, the same bits for any number of threads. O(N·D).

    `grouping`: the rows by their labels, from who has it.
    """
    sums, counts = sums_about_offset(shard, n_clusters, grouping)
    return (sums if shard.offset is None else sums + counts[:, None] * shard.offset), counts


def sums_about_offset(shard: CpuShard, n_clusters: int, grouping: Grouping | None = None) -> tuple[F64, F64]:
    """Σ w (x − offset) and Σ w per label."""
    if is_few(shard, n_clusters):
        return _sums_by_span(shard, n_clusters)
    if grouping is None:
        starts, order = group_by(shard.labels, n_clusters, shard.n_threads)
        grouping = Grouping(shard.labels, starts, order[None])
    return _sums_in_cluster_order(shard, grouping)


def is_few(shard: CpuShard, n_clusters: int) -> bool:
    """Whether each span of rows may have all sums of its own; over the columns of sparse rows they would be large."""
    return n_clusters * shard.n_columns <= CACHED_NUMBERS and isinstance(shard.rows, DenseRows)


def span_length(n_rows: int, n_clusters: int) -> int:
    """Rows of such a span."""
    return max(ROWS_PER_RUN, 8 * n_clusters, -(-n_rows // SPANS))


def _sums_by_span(shard: CpuShard, n_clusters: int) -> tuple[F64, F64]:
    """Few sums: every span of rows has its own, added in the order of the spans; rows are read as they lie."""
    n, D = shard.n_rows, shard.n_columns
    length = span_length(n, n_clusters)
    n_spans = -(-n // length)
    sums, counts = np.empty((n_spans, n_clusters, D)), np.empty((n_spans, n_clusters))

    def add(queue: NDArray[np.int64], rows: KernelRows, part: slice, spans: slice) -> None:
        kernels.sum_spans(
            queue, length, rows, shard.weights[part], shard.scales[part], shard.origin, shard.labels[part], sums[spans],
            counts[spans],
        )  # fmt: skip

    on_spans(shard.rows, length, shard.n_threads, add)
    return np.add.reduce(sums, axis=0), np.add.reduce(counts, axis=0)


def _sums_in_cluster_order(shard: CpuShard, grouping: Grouping) -> tuple[F64, F64]:
    """Many sums: rows are taken in the order of their clusters, so that every sum is written once."""
    starts, n, D = grouping.starts, shard.n_rows, shard.n_columns
    runs, pieces = cut_clusters(starts, ROWS_PER_RUN)
    sums, counts = np.zeros((len(starts) - 1, D)), np.zeros(len(starts) - 1)
    piece_sums, piece_counts = np.zeros((len(pieces), D)), np.zeros(len(pieces))

    def add(queue: NDArray[np.int64], runs: NDArray[np.int64], begin: int, end: int) -> None:
        rows, places = grouping.load(shard, begin, end)
        kernels.sum_by_runs(
            queue, runs, rows, places, grouping.order[begin:end], begin, shard.weights, shard.scales, shard.origin,
            starts, sums, counts, piece_sums, piece_counts,
        )  # fmt: skip

    if grouping.copied is not None or can_be_indexed(shard.rows):
        queue = new_queue()
        share_kernel(lambda: add(queue, runs, 0, n), queue, max(1, min(shard.n_threads, len(runs))), calls_blas=False)
    else:
        run_all(
            lambda r: add(new_queue(), runs[r : r + 1], *runs[r, :2].tolist()), range(len(runs)), shard.n_threads,
            calls_blas=False,
        )  # fmt: skip
    kernels.join_pieces(pieces, piece_counts[:, None], piece_sums, counts[:, None], sums)
    return sums, counts


def cut_clusters(starts: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows grouped by cluster in runs of at most so many rows, and whose the pieces are: see `kernels.cut_runs`."""
    n = int(starts[-1])
    runs, pieces = np.empty((3 * n // most + 2, 3), dtype=np.int64), np.empty(2 * n // most + 1, dtype=np.int64)
    n_runs, n_pieces = kernels.cut_runs(starts, most, runs, pieces)
    return runs[:n_runs], pieces[:n_pieces]


def add_moved(shard: CpuShard, moved: NDArray[np.integer], sums: F64, counts: F64, offset: F64 = NONE) -> None:
    """Add the moved rows to the sums of their new clusters, and take them from those that they have left."""
    joining, old = moved
    left, leaving = old >= 0, joining
    if not left.all():
        old, leaving = old[left], joining[left]
    numbers = np.concatenate([joining, leaving], dtype=np.int64)
    clusters = np.concatenate([shard.labels.take(joining), old], dtype=np.int32, casting="same_kind")
    order = order_by(clusters, len(sums), shard.n_threads).astype(np.int64, copy=False)
    indexed = can_be_indexed(shard.rows)
    bounds = _cut_moves(order, clusters, SEARCHED_AT_ONCE if indexed else ROWS_PER_TASK)

    def add(queue: NDArray[np.int64], bounds: NDArray[np.int64], order: NDArray[np.int64], rows: KernelRows) -> None:
        kernels.sum_moved(
            queue, bounds, order, rows, not indexed, numbers, clusters, len(joining), shard.weights, shard.scales,
            offset, sums, counts,
        )  # fmt: skip

    def gather_and_add(t: int) -> None:
        moves = order[bounds[t] : bounds[t + 1]]
        add(new_queue(), np.array([0, len(moves)]), moves, gather_rows(shard.rows, numbers[moves]))

    if indexed:
        queue, rows = new_queue(), shard.rows.kernel_rows(0, shard.n_rows)
        threads = worth_waking(shard.n_threads, len(order) * (SECONDS_PER_PAIR + shard.n_columns * SECONDS_PER_NUMBER))
        share_kernel(lambda: add(queue, bounds, order, rows), queue, threads, calls_blas=False)
    else:
        run_all(gather_and_add, range(len(bounds) - 1), shard.n_threads, calls_blas=False)


def _cut_moves(order: NDArray[np.int64], clusters: Labels, size: int) -> NDArray[np.int64]:
    """Where tasks of about so many moves begin, which are ordered by cluster, and where the last one ends.

    Clusters stay whole.
    """
    if len(order) <= size:
        return np.array([0, len(order)])
    last = clusters[order[np.arange(size, len(order), size) - 1]]
    ends = np.searchsorted(clusters, last, side="right", sorter=order)
    return np.unique(np.concatenate([[0], ends, [len(order)]]))
