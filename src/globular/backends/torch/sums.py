"""Sums of rows by their labels, in cluster order: long clusters are cut, and the pieces added in order."""

from __future__ import annotations

from typing import Any

import torch

from globular.backends.torch import plain
from globular.backends.torch.device import has_kernels
from globular.backends.torch.grouping import group
from globular.backends.torch.shard import TorchShard
from globular.model.statistics import HardStatistics
from globular.seam.passes import SumByLabel


def sums_by(shard: TorchShard, labels: Any, n_clusters: int, *, errors: bool, rows: Any = None) -> Any:
    """(C, D + 2): Σ w x, Σ w and, if asked, Σ w d² of the rows of each label, or of these rows, float64. O(N · D)."""
    if n_clusters == 0:
        return torch.empty((0, shard.n_columns + 2), dtype=torch.float64, device=shard.device)
    grouping = group(labels, n_clusters)
    if rows is not None:
        grouping.order = rows[grouping.order]
    d2 = shard.d2_tensor if errors else None
    if has_kernels(shard.device) and shard.exact == torch.float32:
        from globular.backends.torch import launch

        return launch.sum_clusters(shard.x, shard.factors, shard.unit_weights, d2, grouping)
    return plain.sum_clusters(shard.x, shard.factors, shard.w, d2, grouping.order, grouping.starts)


def moved_sums(shard: TorchShard, n_clusters: int, former: Any) -> Any:
    """What rows with another label than before add to their new clusters and take from their old ones."""
    changed = torch.nonzero(former != shard.label_tensor)[:, 0]
    came = sums_by(shard, shard.label_tensor[changed], n_clusters, errors=False, rows=changed)
    left = changed[former[changed] >= 0]  # rows without a label before have nothing to leave
    return came - sums_by(shard, former[left], n_clusters, errors=False, rows=left)


@TorchShard.implements(SumByLabel)
def sum_by_label(shard: TorchShard, work: SumByLabel) -> HardStatistics:
    sums = sums_by(shard, shard.label_tensor, work.n_clusters, errors=False)
    return HardStatistics(shard.give(sums[:, :-2]), shard.give(sums[:, -2]), 0.0, 0, 0)
