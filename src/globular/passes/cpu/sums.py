"""Sums of rows by their labels, the same bits for any number of threads.

Few sums are taken block by block; many in cluster order over a counting sort of the labels, without buffers per thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, kernel, take_number
from globular.model.statistics import F64, HardStatistics
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.engine.rows import AHEAD, add_row, fetch
from globular.passes.cpu.grouped import ROWS_PER_TASK, Grouping, count_up_to
from globular.passes.cpu.rows import DenseRows, KernelRows, can_be_indexed, on_rows, on_tasks
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import CACHED_NUMBERS, NONE, SEARCHED_AT_ONCE, runs_of
from globular.seam.passes import Assign, SumByLabel
from globular.threads import SECONDS_PER_NUMBER, SECONDS_PER_PAIR, worth_waking

ROWS_PER_RUN = 16384
"""Longest run of rows that one task sums; longer clusters are cut, and the pieces added in order."""
SUMMED_SPANS = 64
"""Most spans of rows that have sums of their own."""


@kernel
def sum_spans(
    queue: Queue,  # IN/OUT spans of rows
    length: int,  # IN  rows of a span
    rows: Any,  # IN
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) subtracted from dense rows
    labels: Any,  # IN  (N,)
    sums: Any,  # OUT (spans, C, D) Σ w s (x − offset)
    counts: Any,  # OUT (spans, C) Σ w
) -> None:
    """Add rows to their clusters as they come. O(N · D + spans · C · D)."""
    s = take_number(queue)
    while s < counts.shape[0]:
        sums[s] = 0.0
        counts[s] = 0.0
        for i in range(s * length, min((s + 1) * length, labels.shape[0])):
            weight = weights[i] if weights.shape[0] else 1.0
            counts[s, labels[i]] += weight
            add_row(rows, i, weight * (scales[i] if scales.shape[0] else 1.0), offset, sums[s], labels[i])
        s = take_number(queue)


@kernel
def cut_runs(
    starts: Any,  # IN  (C + 1,) where the rows of each cluster begin
    most: int,  # IN  rows of a run
    whole: bool,  # IN  whether clusters that are too large stay whole
    runs: Any,  # OUT (·, 3) where each run begins and ends; −1, or which piece of a cluster it is
    pieces: Any,  # OUT (·,) the clusters of the pieces
) -> tuple[int, int]:
    """Cut rows grouped by cluster into runs of whole clusters, and pieces of those that are too large for one.

    Returns the number of runs and of pieces: at most 3 n / most + 1 and 2 n / most for n rows. O(C)
    """
    n_runs, n_pieces, c = 0, 0, 0
    C = starts.shape[0] - 1
    while c < C:
        begin = starts[c]
        last = c
        while last < C and starts[last + 1] - begin <= most:
            last += 1
        last = max(last, c + 1) if whole else last
        if last > c:
            if starts[last] > begin:
                runs[n_runs, 0], runs[n_runs, 1], runs[n_runs, 2] = begin, starts[last], -1
                n_runs += 1
            c = last
            continue
        for first in range(begin, starts[c + 1], most):
            runs[n_runs, 0], runs[n_runs, 1], runs[n_runs, 2] = first, min(first + most, starts[c + 1]), n_pieces
            pieces[n_pieces] = c
            n_runs += 1
            n_pieces += 1
        c += 1
    return n_runs, n_pieces


@kernel
def sum_by_runs(
    queue: Queue,  # IN/OUT runs
    runs: Any,  # IN  (R, 3), see `cut_runs`
    rows: Any,  # IN
    places: Any,  # IN  (n,) where rows lie in `rows`, in cluster order
    numbers: Any,  # IN  (n,) their numbers in the shard
    signs: Any,  # IN  (n,) −1 for rows that leave their clusters, or empty
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) subtracted from dense rows
    starts: Any,  # IN  (C + 1,) where each cluster's rows begin in the cluster order
    sums: Any,  # IN/OUT (C, D) Σ w s (x − offset)
    counts: Any,  # IN/OUT (C,) Σ w
    piece_sums: Any,  # IN/OUT (P, D)
    piece_counts: Any,  # IN/OUT (P,)
) -> None:
    """Add runs of rows in cluster order to their clusters, or to the pieces of these. O(N · D)."""
    r = take_number(queue)
    while r < runs.shape[0]:
        begin, last, piece = runs[r, 0], runs[r, 1] - 1, runs[r, 2]
        c = count_up_to(starts, begin) - 1
        for k in range(begin, last + 1):
            while starts[c + 1] <= k:
                c += 1
            fetch(rows, places[min(k + AHEAD, last)])
            i = numbers[k]
            weight = weights[i] if weights.shape[0] else 1.0
            weight = weight * signs[k] if signs.shape[0] else weight
            factor = weight * (scales[i] if scales.shape[0] else 1.0)
            if piece < 0:
                counts[c] += weight
                add_row(rows, places[k], factor, offset, sums, c)
            else:
                piece_counts[piece] += weight
                add_row(rows, places[k], factor, offset, piece_sums, piece)
        r = take_number(queue)


@kernel
def join_pieces(
    pieces: Any,  # IN  (P,)
    piece_totals: Any,  # IN  (P, ·)
    piece_sums: Any,  # IN  (P, D)
    totals: Any,  # IN/OUT (C, ·)
    sums: Any,  # IN/OUT (C, D)
) -> None:
    """Clusters from their pieces, in the order of these. O(P · D)."""
    for p in range(pieces.shape[0]):
        c = pieces[p]
        for a in range(totals.shape[1]):
            totals[c, a] += piece_totals[p, a]
        for j in range(sums.shape[1]):
            sums[c, j] += piece_sums[p, j]


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
        grouping = Grouping(shard.labels, starts, order)
    return _sums_in_cluster_order(shard, grouping)


def is_few(shard: CpuShard, n_clusters: int) -> bool:
    """Whether each span of rows may have all sums of its own; over the columns of sparse rows they would be large."""
    return n_clusters * shard.n_columns <= CACHED_NUMBERS and isinstance(shard.rows, DenseRows)


def span_length(n_rows: int, n_clusters: int) -> int:
    """Rows of such a span."""
    return max(ROWS_PER_RUN, 8 * n_clusters, -(-n_rows // SUMMED_SPANS))


def _sums_by_span(shard: CpuShard, n_clusters: int) -> tuple[F64, F64]:
    """Few sums: every span of rows has its own, added in the order of the spans; rows are read as they lie."""
    n, D = shard.n_rows, shard.n_columns
    length = span_length(n, n_clusters)
    n_spans = -(-n // length)
    sums, counts = np.empty((n_spans, n_clusters, D)), np.empty((n_spans, n_clusters))

    def add(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        spans = runs_of(part, length)
        sum_spans(
            queue, length, rows, shard.weights[part], shard.scales[part], shard.origin, shard.labels[part], sums[spans],
            counts[spans],
        )  # fmt: skip

    on_rows(shard.rows, shard.n_threads, add, length=length, calls_blas=False)
    return np.add.reduce(sums, axis=0), np.add.reduce(counts, axis=0)


def _sums_in_cluster_order(shard: CpuShard, grouping: Grouping) -> tuple[F64, F64]:
    """Many sums: rows are taken in the order of their clusters, so that every sum is written once."""
    starts, D = grouping.starts, shard.n_columns
    runs, pieces = cut_clusters(starts, ROWS_PER_RUN)
    sums, counts = np.zeros((len(starts) - 1, D)), np.zeros(len(starts) - 1)
    piece_sums, piece_counts = np.zeros((len(pieces), D)), np.zeros(len(pieces))

    def add(queue: NDArray[np.int64], some: slice, rows: KernelRows, places: NDArray[np.integer]) -> None:
        sum_by_runs(
            queue, runs[some], rows, places, grouping.order, NONE, shard.weights, shard.scales, shard.origin, starts,
            sums, counts, piece_sums, piece_counts,
        )  # fmt: skip

    on_tasks(shard.rows, grouping.order, runs[:, 0], shard.n_threads, add)
    join_pieces(pieces, piece_counts[:, None], piece_sums, counts[:, None], sums)
    return sums, counts


def cut_clusters(
    starts: NDArray[np.int64], most: int, *, whole: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows grouped by cluster in runs of at most `most` rows, and whose the pieces are: see `cut_runs`."""
    n = int(starts[-1])
    runs, pieces = np.empty((3 * n // most + 2, 3), dtype=np.int64), np.empty(2 * n // most + 1, dtype=np.int64)
    n_runs, n_pieces = cut_runs(starts, most, whole, runs, pieces)
    return runs[:n_runs], pieces[:n_pieces]


def add_moved(shard: CpuShard, moved: NDArray[np.integer], sums: F64, counts: F64, offset: F64) -> None:
    """Add the moved rows to the sums of their new clusters, and take them from those that they have left."""
    joining, old = moved
    leaving, dtype = old >= 0, np.int32 if shard.n_rows < 2**31 else np.int64
    numbers = np.concatenate([joining, joining[leaving]], dtype=dtype, casting="same_kind")
    clusters = np.concatenate([shard.labels.take(joining), old[leaving]], dtype=np.int32, casting="same_kind")
    starts, order = group_by(clusters, len(sums), shard.n_threads)
    numbers, signs = numbers[order], np.where(order < len(joining), 1.0, -1.0)
    runs, _ = cut_clusters(starts, SEARCHED_AT_ONCE if can_be_indexed(shard.rows) else ROWS_PER_TASK, whole=True)

    def add(queue: NDArray[np.int64], some: slice, rows: KernelRows, places: NDArray[np.integer]) -> None:
        sum_by_runs(
            queue, runs[some], rows, places, numbers, signs, shard.weights, shard.scales, offset, starts, sums, counts,
            sums[:0], counts[:0],
        )  # fmt: skip

    seconds = len(numbers) * (SECONDS_PER_PAIR + shard.n_columns * SECONDS_PER_NUMBER)
    on_tasks(shard.rows, numbers, runs[:, 0], worth_waking(shard.n_threads, seconds), add)
