"""Inside of components: which one a row belongs to, and the E-step of a mixture within each of them."""

from __future__ import annotations

import numpy as np

from globular.model.groups import group_by
from globular.model.statistics import WithinStatistics
from globular.passes.cpu.expect.blocks import ChunkBlocks
from globular.passes.cpu.expect.shares import Groups, expect_groups
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.shard import CpuShard
from globular.seam.mixture_passes import ExpectWithin, LabelByDensity
from globular.seam.shard import answer


@CpuShard.implements(LabelByDensity)
def label_by_density(shard: CpuShard, work: LabelByDensity) -> None:
    shard.labels[:] = answer(shard, work.mixture, "components")


@CpuShard.implements(ExpectWithin)
def expect_within(shard: CpuShard, work: ExpectWithin) -> WithinStatistics:
    """Every component is a mixture of its parts, for which its rows are brought together: a copy of all of them."""
    C = work.mixture.n_components // work.n_parts
    starts, order = group_by(shard.labels, C, shard.n_threads)
    blocks = ChunkBlocks(work.mixture, np.zeros(work.mixture.n_features), by_differences=True)
    scales, weights = (values[order] if len(values) else values for values in (shard.scales, shard.weights))
    rows = blocks.rows(shard.dense_rows.gather(order), scales)
    groups = Groups(starts, np.arange(C)[:, None], np.arange(0, len(blocks.means) + 1, work.n_parts))
    return expect_groups(blocks, rows, read_only(weights), groups, 0.0, shard.n_threads)
