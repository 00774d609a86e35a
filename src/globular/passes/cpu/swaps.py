"""What swaps have to know: the worth of each centre, and the gain of a second one beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, kernel, take_number
from globular.jit.memory import as_matrix
from globular.model.statistics import HardStatistics, SpareCenters
from globular.passes.cpu.cells import CellProduct
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.engine.rows import add_row, squared_distance
from globular.passes.cpu.engine.score import rows_for_table, score_block
from globular.passes.cpu.grouped import Grouping, packed
from globular.passes.cpu.rows import KernelRows, on_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.cpu.sums import cluster_sums, is_few, span_length
from globular.passes.host import RUN, runs_of
from globular.seam.passes import Halve, Spare


@kernel
def find_two_closest(
    queue: Queue,  # IN/OUT tasks
    visit: Any,  # IN  all rows, in turn
    nominees: Any,  # IN  two or more in one cell
    labels: Any,  # OUT (n,) the closest centre by its score
    d2: Any,  # OUT (n,) squared distance to it
    losses: Any,  # OUT (tasks, C) Σ w (second − closest squared distance)
    objectives: Any,  # OUT (tasks,) Σ w d²
    block: Scratch,  # scratch
) -> None:
    """The closest and the second closest centre of every row. O(n · C · D)."""
    t, stop = take_number(queue), nominees.starts[1]
    B = rows_for_table(block, stop)
    while t < objectives.shape[0]:
        losses[t], objectives[t] = 0.0, 0.0
        for begin in range(visit.tasks[t, 1], visit.tasks[t, 2], B):
            end = min(begin + B, visit.tasks[t, 2])
            some = visit.places[begin:end]
            score_block(visit.rows, some, some, visit.given, nominees, 0, stop, block)
            scores = as_matrix(block.table, end - begin, stop)
            for i in range(begin, end):
                lowest, second, closest = scores.dtype.type(np.inf), scores.dtype.type(np.inf), 0
                for c in range(nominees.ends[0]):
                    score = scores[i - begin, c]
                    if score < second:
                        if score < lowest:
                            lowest, second, closest = score, lowest, c
                        else:
                            second = score
                weight = visit.given.weights[i] if visit.given.weights.shape[0] else 1.0
                labels[i] = closest
                d2[i] = max(0.0, np.float64(lowest))
                losses[t, closest] += weight * (np.float64(second) - lowest)
                objectives[t] += weight * d2[i]
        t = take_number(queue)


@kernel
def halve_clusters(
    queue: Queue,  # IN/OUT spans of rows
    length: int,  # IN  rows of a span
    first_row: int,  # IN  number of the first of these rows
    rows: Any,  # IN
    scales: Any,  # IN  (n,) or empty
    weights: Any,  # IN  (n,) or empty
    names: Any,  # IN  (C,) or empty: labels of those that are closer to the second
    labels: Any,  # IN/OUT (n,)
    firsts: Any,  # IN  (C, D) float64
    first_norms: Any,  # IN  (C,)
    seconds: Any,  # IN  (C, D) float64
    second_norms: Any,  # IN  (C,)
    d2: Any,  # OUT (n,) squared distance to the closer of the two
    objectives: Any,  # OUT (spans,) Σ w d²
    sums: Any,  # OUT (spans, C, D) Σ w x over the rows that are closer to the second; or (0, C, D)
    counts: Any,  # OUT (spans, C) Σ w over them; or (0, C)
    won: Any,  # OUT (2, N) where there are no sums: the numbers of these rows from where each span begins, and their c
    n_won: Any,  # OUT (spans,) how many they are
) -> None:
    """Give every row to the closer one of the two centres of its cluster. O(n · D)."""
    s = take_number(queue)
    while s < objectives.shape[0]:
        objective, begin, is_summed = 0.0, s * length, sums.shape[0] > 0
        at = first_row + begin
        if is_summed:
            sums[s] = 0.0
            counts[s] = 0.0
        for i in range(begin, min(begin + length, labels.shape[0])):
            scale = scales[i] if scales.shape[0] else 1.0
            weight = weights[i] if weights.shape[0] else 1.0
            c = labels[i]
            first = squared_distance(rows, i, scale, firsts, c, first_norms)
            second = squared_distance(rows, i, scale, seconds, c, second_norms)
            if second < first:
                if is_summed:
                    counts[s, c] += weight
                    add_row(rows, i, weight * scale, first_norms[:0], sums[s], c)
                else:
                    won[0, at], won[1, at] = first_row + i, c
                    at += 1
                if names.shape[0]:
                    labels[i] = names[c]
            d2[i] = min(first, second)
            objective += weight * d2[i]
        objectives[s], n_won[s] = objective, at - first_row - begin
        s = take_number(queue)


@CpuShard.implements(Spare)
def spare(shard: CpuShard, work: Spare) -> SpareCenters:
    n, C = shard.n_rows, len(work.centers)
    product = CellProduct(shard, work.centers)
    losses, objectives = np.empty((-(-n // RUN), C)), np.empty(-(-n // RUN))

    def look(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        tasks = runs_of(part)
        find_two_closest(
            queue, product.visit(rows, part, RUN), product.nominees, shard.labels[part], shard.squared_distances[part],
            losses[tasks], objectives[tasks], product.block(table=True),
        )  # fmt: skip

    on_rows(shard.rows, shard.n_threads, look, length=RUN, calls_blas=False)
    return SpareCenters(np.add.reduce(losses, axis=0), float(objectives.sum()), n * C)


@CpuShard.implements(Halve)
def halve(shard: CpuShard, work: Halve) -> HardStatistics:
    n, (C, D) = shard.n_rows, work.firsts.shape
    norms = [np.einsum("ij,ij->i", centers, centers) for centers in (work.firsts, work.seconds)]
    names = np.ascontiguousarray([] if work.names is None else work.names, dtype=np.int32)
    # few sums are taken span by span; for many the rows that are won are listed, and added cluster by cluster
    few = is_few(shard, C)
    length = span_length(n, C) if few else RUN
    begins = np.arange(0, n, length)
    sums, counts = np.empty((len(begins) if few else 0, C, D)), np.empty((len(begins) if few else 0, C))
    won: NDArray[np.integer] = np.empty((2, 0 if few else n), dtype=np.int32 if n < 2**31 else np.int64)
    objectives, n_won = np.empty(len(begins)), np.empty(len(begins), dtype=np.int64)
    d2 = shard.squared_distances

    def cut(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        spans = runs_of(part, length)
        halve_clusters(
            queue, length, part.start, rows, shard.scales[part], shard.weights[part], names, shard.labels[part],
            work.firsts, norms[0], work.seconds, norms[1], d2[part], objectives[spans], sums[spans],
            counts[spans], won, n_won[spans],
        )  # fmt: skip

    on_rows(shard.rows, shard.n_threads, cut, length=length, calls_blas=False)
    if few:
        found = np.add.reduce(sums, axis=0), np.add.reduce(counts, axis=0)
    else:
        numbers, clusters = packed(won, begins, n_won, shard.n_threads)
        starts, order = group_by(clusters, C, shard.n_threads)
        found = cluster_sums(shard, C, Grouping(clusters, starts, numbers[order]))
    return HardStatistics(*found, float(objectives.sum()), 0, 2 * n)
