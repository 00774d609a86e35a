"""What swaps have to know: the worth of each centre, and the gain of a second one beside it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.kernels import swaps as kernels
from globular.kernels.nearest import row_lengths
from globular.model.groups import group_by
from globular.model.statistics import F64, HardStatistics, SpareCenters
from globular.passes.cpu.grouped import Grouping, packed
from globular.passes.cpu.products import CenterProduct
from globular.passes.cpu.rows import KernelRows, on_spans
from globular.passes.cpu.shard import CpuShard
from globular.passes.cpu.sums import cluster_sums, is_few, span_length
from globular.passes.host import RUN
from globular.seam.passes import Halve, Spare
from globular.threads import even_ranges, map_all


@CpuShard.implements(Spare)
def spare(shard: CpuShard, work: Spare) -> SpareCenters:
    n_centers = len(work.centers)
    product = CenterProduct(shard, work.centers, [np.arange(n_centers)])
    labels, d2 = shard.labels, shard.squared_distances

    def look(span: tuple[int, int]) -> tuple[float, F64]:
        part, losses = slice(*span), np.zeros(n_centers)
        _, seen, scales = product.load(*span)
        lengths = np.empty(span[1] - span[0])
        row_lengths(seen, lengths)
        scores = product.scores(seen, None, product.chunks[0])
        objective = kernels.two_closest(
            scores, product.chunks[0].norms, scales, lengths, shard.weights[part], labels[part], d2[part], losses
        )
        return objective, losses

    found = map_all(look, even_ranges(shard.n_rows, product.rows_per_block), shard.n_threads)
    objective, losses = sum(objective for objective, _ in found), np.sum([losses for _, losses in found], axis=0)
    return SpareCenters(losses, float(objective), shard.n_rows * n_centers)


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
    origin, d2 = np.zeros(D), shard.squared_distances

    def cut(queue: NDArray[np.int64], rows: KernelRows, part: slice, spans: slice) -> None:
        kernels.halve_clusters(
            queue, length, part.start, rows, shard.scales[part], shard.weights[part], names, shard.labels[part],
            work.firsts, norms[0], work.seconds, norms[1], origin, d2[part], objectives[spans], sums[spans],
            counts[spans], won, n_won[spans],
        )  # fmt: skip

    on_spans(shard.rows, length, shard.n_threads, cut)
    if few:
        found = np.add.reduce(sums, axis=0), np.add.reduce(counts, axis=0)
    else:
        numbers, clusters = packed(won, begins, n_won, shard.n_threads)
        starts, order = group_by(clusters, C, shard.n_threads)
        found = cluster_sums(shard, C, Grouping(clusters, starts, numbers[order][None]))
    return HardStatistics(*found, float(objectives.sum()), 0, 2 * n)
