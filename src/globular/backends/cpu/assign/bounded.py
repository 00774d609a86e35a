"""The bounded pass: the labels of the hard pass by yinyang bounds, with fewer distances.

One compiled call per thread takes blocks of rows; for every group of centres the rows that must search it are put
together and multiplied with the group's centres, so that even filtered work runs as matrix products. Per-point state:
the label and one float32 per group.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.products import THIN
from globular.backends.cpu.rows import CSRRows, KernelRows, on_rows
from globular.backends.cpu.shard import CpuShard
from globular.backends.cpu.sums import former_labels, wanted_sums
from globular.backends.host import NONE, RUN, runs_of
from globular.kernels.bounded import assign_bounded as search_rows
from globular.model.statistics import HardStatistics
from globular.seam.among import Bounded
from globular.seam.passes import Assign

BLOCK_SCORES, BLOCK_ROWS = 1 << 17, 512
"""About how many scores, and most rows, of one product: they stay in the second-level cache."""


@CpuShard.implements(Assign, Bounded)
def assign_bounded(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against the groups of centres that its bounds do not rule out."""
    assert isinstance(work.among, Bounded)
    groups, shifts, dtype = work.among.groups, work.among.shifts, shard.dtype
    former, labels = former_labels(shard, work), shard.labels
    lower = cast(NDArray[np.float32], shard.state.get("yinyang", np.float32, 0.0, width=groups.n_groups))
    if shifts is None:
        lower[:], labels[:] = 0.0, -1
    group_shifts = np.zeros(groups.n_groups) if shifts is None else groups.largest_shift(shifts)

    centers = np.ascontiguousarray(work.centers, dtype=np.float64)
    norms, offset = np.einsum("ij,ij->i", centers, centers), NONE if shard.offset is None else shard.offset
    members, starts = np.asarray(groups.order, dtype=np.int64), np.asarray(groups.starts, dtype=np.int64)
    sizes = np.diff(starts)
    group_of = np.empty(len(centers), dtype=np.int64)
    group_of[members] = np.repeat(np.arange(groups.n_groups), sizes)
    shifted = centers[members] - offset if len(offset) else centers[members]
    with np.errstate(over="ignore"):  # kernels see by themselves where scores overflow
        score_norms = np.einsum("ij,ij->i", shifted, shifted)
        longest = np.sqrt(np.maximum.reduceat(score_norms, starts[:-1]))
        score_norms, factors = score_norms.astype(dtype), (-2.0 * shifted).astype(dtype)
    is_sparse = isinstance(shard.rows, CSRRows)
    is_thin = not is_sparse and 0 < shard.n_columns <= THIN
    if is_sparse or is_thin:
        factors = np.ascontiguousarray(factors.T)
    unit, tiny, largest = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny), int(sizes.max())
    objectives = np.empty(-(-shard.n_rows // RUN))
    numbers = np.empty((len(objectives), 2), dtype=np.int64)

    def search(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        blocks = runs_of(part)
        search_rows(
            queue, RUN, rows, shard.scales[part], shard.weights[part], offset, starts, members, group_of, factors,
            is_thin, score_norms, longest, centers, norms, unit, tiny, group_shifts, labels[part], lower[part],
            objectives[blocks], numbers[blocks], np.empty((BLOCK_ROWS, shard.n_columns), dtype=dtype),
            np.empty(max(BLOCK_SCORES, 16 * largest), dtype=dtype), np.empty(BLOCK_ROWS), np.empty(RUN),
            np.empty(RUN, dtype=np.int32), np.empty((2, RUN), dtype=np.int64),
        )  # fmt: skip

    on_rows(shard.rows, shard.n_threads, search)
    n_changed, n_distances = numbers.sum(axis=0).tolist()
    n_distances += 0 if shifts is None else shard.n_rows
    return HardStatistics(*wanted_sums(shard, work, former), float(objectives.sum()), n_changed, n_distances)
