"""What swaps have to know: the worth of each centre, and the gain of a second one beside it."""

from __future__ import annotations

import numpy as np

from globular.backends.cpu.products import CenterProduct
from globular.backends.cpu.rows import CSRRows
from globular.backends.cpu.shard import CpuShard
from globular.kernels import swaps as kernels
from globular.kernels.nearest import row_lengths
from globular.model.statistics import F64, HardStatistics, SpareCenters
from globular.seam.passes import Halve, Spare
from globular.threads import even_ranges, map_all, ordered_map

ROWS_PER_BLOCK = 16384
NO_NAMES = np.empty(0, dtype=np.int32)


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
    norms = [np.einsum("ij,ij->i", centers, centers) for centers in (work.firsts, work.seconds)]
    names = NO_NAMES if work.names is None else np.ascontiguousarray(work.names, dtype=np.int32)
    shape, origin, d2 = work.firsts.shape, np.zeros(shard.n_columns), shard.squared_distances

    def cut(span: tuple[int, int]) -> HardStatistics:
        part, sums, counts = slice(*span), np.zeros(shape), np.zeros(shape[0])
        objective = kernels.halve_clusters(
            shard.rows.kernel_rows(*span), shard.scales[part], shard.weights[part], names, shard.labels[part],
            work.firsts, norms[0], work.seconds, norms[1], origin, d2[part], sums, counts,
        )  # fmt: skip
        return HardStatistics(sums, counts, objective, 0, 2 * (span[1] - span[0]))

    # sums over the many columns of sparse rows are as large as all rows together: one is enough
    n_rows = shard.n_rows if isinstance(shard.rows, CSRRows) else max(ROWS_PER_BLOCK, 8 * shape[0])
    total = HardStatistics(np.zeros(shape), np.zeros(shape[0]), 0.0, 0, 0)
    for found in ordered_map(cut, even_ranges(shard.n_rows, n_rows), shard.n_threads):
        total = total + found
    return total
