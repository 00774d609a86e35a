"""The hard pass: every row to its exactly closest centre, sums per cluster.

Blocks of rows are multiplied with chunks of centres (BLAS, sized so that the scores stay in the second-level cache);
the scores nominate labels which `kernels.hard` checks exactly. Sums are then taken in cluster order over a counting
sort of the labels: no buffers per thread, the same bits for any number of threads. Memory beyond the rows: 8 bytes a
row, the centres once more in the rows' dtype, and one block of scores per thread; never N×C.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.products import CenterProduct
from globular.backends.cpu.shard import CpuShard
from globular.backends.cpu.sums import former_labels, wanted_sums
from globular.kernels import nearest as kernels
from globular.model.statistics import F64, FarRows, HardStatistics
from globular.seam.among import All
from globular.seam.passes import Assign, Farthest
from globular.threads import even_ranges, map_all


@CpuShard.implements(Assign, All)
def assign_all(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against all centres."""
    centers, former = work.centers, former_labels(shard, work)
    product = CenterProduct(shard, centers)
    labels = shard.labels

    def assign(span: tuple[int, int]) -> tuple[float, int]:
        start, stop = span
        rows, seen, scales = product.load(start, stop)
        best = np.full(stop - start, np.inf)
        found = np.full(stop - start, -1, dtype=np.int32)
        product.nearest(rows, seen, scales, best, found)
        return kernels.settle_block(best, found, shard.weights[start:stop], labels[start:stop])

    objective, n_changed = 0.0, 0
    spans = even_ranges(shard.n_rows, product.rows_per_block)
    for block_objective, block_changed in map_all(assign, spans, shard.n_threads):
        objective += block_objective
        n_changed += block_changed
    return HardStatistics(*wanted_sums(shard, work, former), objective, n_changed, shard.n_rows * len(centers))


@CpuShard.implements(Farthest)
def farthest(shard: CpuShard, work: Farthest) -> FarRows:
    n, centers = work.n, np.ascontiguousarray(work.centers, dtype=np.float64)
    norms = np.einsum("ij,ij->i", centers, centers)

    def block(span: tuple[int, int]) -> tuple[F64, NDArray[np.intp]]:
        start, stop = span
        distances = np.empty(stop - start)
        rows = shard.rows.kernel_rows(start, stop)
        kernels.own_distances(rows, shard.scales[start:stop], centers, norms, shard.labels[start:stop], distances)
        if len(shard.weights):
            distances[shard.weights[start:stop] == 0] = -1.0
        chosen = np.argsort(-distances, kind="stable")[:n]
        return distances[chosen], chosen + start

    found = map_all(block, even_ranges(shard.n_rows, 8192), shard.n_threads)
    distances = np.concatenate([np.empty(0), *(d for d, _ in found)])
    indices = np.concatenate([np.empty(0, dtype=np.intp), *(i for _, i in found)])
    best = np.argsort(-distances, kind="stable")[:n]
    best = best[distances[best] >= 0]
    chosen = indices[best]
    weights, labels = shard.take(chosen, "weights"), shard.labels[chosen].astype(np.int64)
    return FarRows(shard.take(chosen), distances[best], weights, labels)
