"""Sums of rows by their labels, the same bits for any number of threads.

Few sums are taken block by block; many in cluster order over a counting sort of the labels, without buffers per thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.grouped import ROWS_PER_TASK, Grouping
from globular.backends.cpu.rows import DenseRows, KernelRows, can_be_indexed, gather_rows
from globular.backends.cpu.shard import CpuShard
from globular.kernels import nearest as kernels
from globular.kernels.grouped import sum_moved
from globular.kernels.queue import new_queue
from globular.model.groups import group_by, order_by
from globular.model.statistics import F64, HardStatistics
from globular.seam.passes import Assign, Labels, SumByLabel
from globular.threads import even_ranges, on_all_threads, ordered_map, run_all

FEW_SUMS = 1 << 16
"""Numbers (clusters × columns) up to which sums stay in the second-level cache."""
ROWS_PER_RUN = 16384
"""Longest run of rows that one task sums; longer clusters are cut, and the pieces added in order."""

MOVES_PER_TASK = 512
"""Rows that have moved, and clusters that they might have moved to, of a task."""


def former_labels(shard: CpuShard, work: Assign) -> Labels | None:
    """The labels before a pass, if it is to say what has moved."""
    return shard.labels.copy() if work.want == "moves" else None


def wanted_sums(shard: CpuShard, work: Assign, former: Labels | None) -> tuple[F64, F64]:
    """Sums and counts of a pass that has set the labels, as far as it wants any."""
    if work.want == "labels":
        return np.empty((0, shard.n_columns)), np.empty(0)
    if former is None:
        return cluster_sums(shard, len(work.centers))
    changed = np.flatnonzero(former != shard.labels)
    return moved_sums(shard, len(work.centers), np.stack([changed, former[changed]]))


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
    if n_clusters * shard.n_columns <= FEW_SUMS and isinstance(shard.rows, DenseRows):
        return _sums_by_block(shard, n_clusters)
    if grouping is None:
        starts, order = group_by(shard.labels, n_clusters, shard.n_threads)
        grouping = Grouping(shard.labels, starts, order[None])
    return _sums_in_cluster_order(shard, grouping)


def _sums_by_block(shard: CpuShard, n_clusters: int) -> tuple[F64, F64]:
    """Few sums: every block of rows has its own, added in the order of the blocks; rows are read as they lie."""
    rows, offset = shard.rows, shard.offset
    shift = np.zeros(shard.n_columns) if offset is None else offset

    def add_block(span: tuple[int, int]) -> tuple[F64, F64]:
        part = slice(*span)
        sums, counts = np.zeros((n_clusters, shard.n_columns)), np.zeros(n_clusters)
        kernels.sum_block(
            rows.kernel_rows(*span), shard.weights[part], shard.scales[part], shift, shard.labels[part], sums, counts
        )
        return sums, counts

    total, count = np.zeros((n_clusters, shard.n_columns)), np.zeros(n_clusters)
    for sums, counts in ordered_map(
        add_block, even_ranges(shard.n_rows, max(ROWS_PER_RUN, 8 * n_clusters)), shard.n_threads
    ):
        total += sums
        count += counts
    return total, count


def _sums_in_cluster_order(shard: CpuShard, grouping: Grouping) -> tuple[F64, F64]:
    """Many sums: rows are taken in the order of their clusters, so that every sum is written once."""
    starts = grouping.starts
    offset = shard.offset
    shift = np.zeros(shard.n_columns) if offset is None else offset
    sums, counts = np.zeros((len(starts) - 1, shard.n_columns)), np.zeros(len(starts) - 1)

    def add_run(run: _Run, sums: F64, counts: F64, base: int) -> None:
        rows, places = grouping.load(shard, run.begin, run.end)
        kernels.sum_run(
            rows, places, grouping.order[run.begin : run.end], shard.weights, shard.scales, shift, starts,
            run.begin, run.cluster, base, sums, counts,
        )  # fmt: skip

    def whole_clusters(run: _Run) -> None:
        add_run(run, sums, counts, 0)

    def piece_of_cluster(run: _Run) -> tuple[int, F64, F64]:
        part, count = np.zeros((1, shard.n_columns)), np.zeros(1)
        add_run(run, part, count, run.cluster)
        return run.cluster, part, count

    whole, pieces = _runs(starts)
    run_all(whole_clusters, whole, shard.n_threads)
    for cluster, part, count in ordered_map(piece_of_cluster, pieces, shard.n_threads):
        sums[cluster] += part[0]
        counts[cluster] += count[0]
    return sums, counts


def moved_sums(shard: CpuShard, n_clusters: int, moved: NDArray[np.integer]) -> tuple[F64, F64]:
    """What moved rows change about all sums."""
    sums, counts = np.zeros((n_clusters, shard.n_columns)), np.zeros(n_clusters)
    add_moved(shard, moved, sums, counts)
    return sums, counts


def add_moved(shard: CpuShard, moved: NDArray[np.integer], sums: F64, counts: F64, offset: F64 | None = None) -> None:
    """Add the moved rows to the sums of their new clusters, and take them from those that they have left."""
    joining, old = moved
    left = old >= 0  # rows without a label before have nothing to leave
    n_clusters, origin = len(sums), np.zeros(shard.n_columns) if offset is None else offset
    numbers, clusters = np.append(joining, joining[left]), np.append(shard.labels[joining], old[left].astype(np.int32))
    order = order_by(clusters, n_clusters, shard.n_threads)
    numbers, clusters, signs = numbers[order], clusters[order], np.where(order < len(joining), 1.0, -1.0)
    indexed = can_be_indexed(shard.rows)
    n_tasks = min(n_clusters, 1 + len(numbers) // (MOVES_PER_TASK if indexed else ROWS_PER_TASK))
    tasks = np.arange(n_tasks + 1) * n_clusters // n_tasks

    def add(
        queue: NDArray[np.int64], tasks: NDArray[np.int64], rows: KernelRows, places: NDArray[np.integer], part: slice
    ) -> None:
        sum_moved(
            queue, tasks, rows, places, numbers[part], clusters[part], signs[part], shard.weights, shard.scales,
            origin, sums, counts,
        )  # fmt: skip

    if indexed:
        queue, rows = new_queue(), shard.rows.kernel_rows(0, shard.n_rows)
        threads = min(shard.n_threads, n_tasks)
        on_all_threads(lambda: add(queue, tasks, rows, numbers, slice(None)), threads, calls_blas=False)
    else:

        def gather_and_add(t: int) -> None:
            part = slice(*np.searchsorted(clusters, tasks[t : t + 2]))
            places = np.arange(part.stop - part.start, dtype=numbers.dtype)
            add(new_queue(), tasks[t : t + 2], gather_rows(shard.rows, numbers[part]), places, part)

        run_all(gather_and_add, range(n_tasks), shard.n_threads)


@dataclass(frozen=True, slots=True)
class _Run:
    begin: int
    end: int
    cluster: int
    """The cluster of its first row."""


def _runs(starts: NDArray[np.int64]) -> tuple[list[_Run], list[_Run]]:
    """Cut the grouped rows into runs of whole clusters, and pieces of clusters too large for one run."""
    whole, pieces = [], []
    large = np.flatnonzero(np.diff(starts) > ROWS_PER_RUN)
    begin = 0
    for cluster in [*large.tolist(), len(starts) - 1]:
        end = int(starts[cluster])
        while begin < end:
            first = int(np.searchsorted(starts, begin, side="right")) - 1
            # the last cluster boundary within reach; every cluster here fits into a run
            stop = min(end, int(starts[np.searchsorted(starts, begin + ROWS_PER_RUN, side="right") - 1]))
            whole.append(_Run(begin, stop, first))
            begin = stop
        if cluster < len(starts) - 1:
            begin = int(starts[cluster + 1])
            pieces += [_Run(end + a, end + b, cluster) for a, b in even_ranges(begin - end, ROWS_PER_RUN)]
    return whole, pieces
