"""Sums of rows by their labels, in cluster order: long clusters are cut, and the pieces added in order."""

from __future__ import annotations

from typing import Any

import torch

from globular.backends.torch import plain
from globular.backends.torch.device import has_kernels
from globular.backends.torch.products import group
from globular.backends.torch.shard import TorchShard
from globular.model.statistics import F64, HardStatistics
from globular.seam.passes import Assign, SumByLabel


def cluster_sums(shard: TorchShard, n_clusters: int, *, errors: bool = False) -> tuple[Any, Any, Any]:
    """Σ w x, Σ w and, if asked, Σ w d² of the rows of each label, float64. O(N · D)."""
    return sums_by(shard, shard.label_tensor, n_clusters, errors=errors)


def sums_by(shard: TorchShard, labels: Any, n_clusters: int, *, errors: bool, rows: Any = None) -> tuple[Any, Any, Any]:
    grouping = group(labels, n_clusters)
    if rows is not None:
        grouping.order = rows[grouping.order]
    d2 = shard.d2_tensor if errors else None
    if has_kernels(shard.device) and shard.exact == torch.float32:
        from globular.backends.torch import launch

        out = launch.sum_clusters(shard.x, shard.factors, shard.unit_weights, d2, grouping)
    else:
        out = plain.sum_clusters(shard.x, shard.factors, shard.w, d2, grouping.order, grouping.starts)
    return out[:, :-2], out[:, -2], out[:, -1]


def moved_sums(shard: TorchShard, n_clusters: int, former: Any) -> tuple[Any, Any]:
    """What rows with another label than before add to their new clusters and take from their old ones."""
    changed = torch.nonzero(former != shard.label_tensor)[:, 0]
    came = sums_by(shard, shard.label_tensor[changed], n_clusters, errors=False, rows=changed)
    left = changed[former[changed] >= 0]  # rows without a label before have nothing to leave
    gone = sums_by(shard, former[left], n_clusters, errors=False, rows=left)
    return came[0] - gone[0], came[1] - gone[1]


def wanted_sums(shard: TorchShard, work: Assign, former: Any) -> tuple[F64, F64]:
    """Sums and counts of a pass that has set the labels, as far as it wants any."""
    if work.want == "labels":
        return shard.give(shard.x.new_empty((0, shard.n_columns), dtype=torch.float64)), shard.give(_no_numbers(shard))
    if work.want == "sums":
        sums, counts, _ = cluster_sums(shard, len(work.centers))
    else:
        sums, counts = moved_sums(shard, len(work.centers), former)
    return shard.give(sums), shard.give(counts)


def _no_numbers(shard: TorchShard) -> Any:
    return torch.empty(0, dtype=torch.float64, device=shard.device)


@TorchShard.implements(SumByLabel)
def sum_by_label(shard: TorchShard, work: SumByLabel) -> HardStatistics:
    sums, counts, _ = cluster_sums(shard, work.n_clusters)
    return HardStatistics(shard.give(sums), shard.give(counts), 0.0, 0, 0)
