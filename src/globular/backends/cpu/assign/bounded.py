"""The bounded pass: the labels of the hard pass by yinyang bounds, with fewer distances.

Blocks of rows; for every group of centres the rows that must search it are gathered and multiplied with the group's
centres, so that even filtered work runs as matrix products. Per-point state: the label and one float32 per group.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.products import CenterProduct
from globular.backends.cpu.shard import CpuShard
from globular.backends.cpu.sums import former_labels, wanted_sums
from globular.kernels import bounded as kernels
from globular.kernels import nearest as hard_kernels
from globular.model.statistics import HardStatistics
from globular.seam.among import Bounded
from globular.seam.passes import Assign
from globular.threads import even_ranges, map_all

ROWS_PER_BLOCK = 4096


@CpuShard.implements(Assign, Bounded)
def assign_bounded(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against the groups of centres that its bounds do not rule out."""
    assert isinstance(work.among, Bounded)
    centers, groups, shifts = work.centers, work.among.groups, work.among.shifts
    former = former_labels(shard, work)
    chunks = [groups.order[a:b] for a, b in zip(groups.starts, groups.starts[1:], strict=False)]
    product = CenterProduct(shard, centers, chunks)
    labels = shard.labels
    lower = cast(NDArray[np.float32], shard.state.get("yinyang", np.float32, 0.0, width=groups.n_groups))
    group_shifts = np.zeros(groups.n_groups)
    if shifts is None:
        lower[:] = 0.0
        labels[:] = -1
    else:
        group_shifts = groups.largest_shift(shifts)
    group_of = np.empty(len(centers), dtype=np.int64)
    for g, members in enumerate(chunks):
        group_of[members] = g

    def block(span: tuple[int, int]) -> tuple[float, int, int]:
        start, stop = span
        n = stop - start
        rows, seen, scales = product.load(start, stop)
        best, found = np.full(n, np.inf), labels[start:stop].copy()
        n_distances = 0
        if shifts is not None:
            hard_kernels.own_distances(rows, scales, product.centers, product.norms, found, best)
            n_distances += n
        active = np.empty(n, dtype=np.int64)
        bounds = lower[start:stop]
        active = active[: kernels.loosen_and_select(bounds, group_shifts, best, active)]
        if len(active):
            lengths = np.empty(n)
            hard_kernels.row_lengths(seen, lengths)
            chosen = np.empty(len(active), dtype=np.int64)
            for g, chunk in enumerate(product.chunks):
                rows_of_group = chosen[: kernels.select_rows(bounds, g, best, active, chosen)]
                if len(rows_of_group) == 0:
                    continue
                scores = product.scores(seen, rows_of_group, chunk)
                kernels.search_group(
                    rows, rows_of_group, lengths, scales, scores, chunk.norms, chunk.members, chunk.longest,
                    g, group_of, product.centers, product.norms, product.unit, product.tiny, best, found, bounds,
                )  # fmt: skip
                n_distances += len(rows_of_group) * len(chunk.members)
        objective, n_changed = hard_kernels.settle_block(best, found, shard.weights[start:stop], labels[start:stop])
        return objective, n_changed, n_distances

    objective, n_changed, n_distances = 0.0, 0, 0
    for part in map_all(block, even_ranges(shard.n_rows, ROWS_PER_BLOCK), shard.n_threads):
        objective, n_changed, n_distances = objective + part[0], n_changed + part[1], n_distances + part[2]
    return HardStatistics(*wanted_sums(shard, work, former), objective, n_changed, n_distances)
