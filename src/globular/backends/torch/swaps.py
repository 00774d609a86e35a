"""What swaps have to know, on the card: the worth of each centre, the gain of a second one, and who is near whom."""

from __future__ import annotations

from typing import Any

import torch

from globular.backends.torch.card import totals_by
from globular.backends.torch.products import Aim
from globular.backends.torch.shard import TorchShard
from globular.backends.torch.sums import sums_by
from globular.model.statistics import HardStatistics, SpareCenters
from globular.seam.passes import CellNeighbors, Halve, Labels, Spare


@TorchShard.implements(Spare)
def spare(shard: TorchShard, work: Spare) -> SpareCenters:
    aim, n = Aim(shard, work.centers), len(work.centers)
    scores, found = aim.nominate(min(2, n), precise=True)
    labels, d2 = found[:, 0], scores[:, 0].to(shard.exact)
    shard.label_tensor.copy_(labels)
    losses = (scores[:, -1] - scores[:, 0]).to(torch.float64) * shard.weights_of_rows
    total = totals_by(losses, shard.label_tensor, n)
    shard.d2_tensor.copy_(d2)
    return SpareCenters(shard.give(total), float(shard.errors().sum()), shard.n_rows * n)


@TorchShard.implements(Halve)
def halve(shard: TorchShard, work: Halve) -> HardStatistics:
    n = len(work.firsts)
    both = torch.cat([shard.tensor(work.firsts), shard.tensor(work.seconds)])
    labels = shard.label_tensor
    found = labels.clone()
    d2, tally = Aim(shard, both).decide((labels + n)[:, None], found, keep=True)
    shard.d2_tensor.copy_(d2)
    second = torch.nonzero(found >= n)[:, 0]
    owners = labels[second]
    sums = sums_by(shard, owners, n, errors=False, rows=second)
    if work.names is not None:
        labels[second] = shard.tensor(work.names, torch.int32)[owners]
    return HardStatistics(shard.give(sums[:, :-2]), shard.give(sums[:, -2]), float(tally[0]), 0, 2 * shard.n_rows)


@TorchShard.implements(CellNeighbors)
def cell_neighbors(shard: TorchShard, work: CellNeighbors) -> Labels:
    """Every row looks into its own cell and the adjacent ones, as if it visited them."""
    starts, adjacent = shard.tensor(work.starts, torch.int64), shard.tensor(work.adjacent, torch.int64)
    sizes, n, device = starts.diff(), work.n_neighbors, shard.device
    if bool((sizes[adjacent].sum(1) < n).any()):
        adjacent = torch.arange(len(sizes), device=device).expand(len(sizes), -1)
    own = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes, output_size=shard.n_rows)
    visits = adjacent[own]
    aim = Aim(shard, shard.take_tensor(slice(None)), starts=starts)
    scores, found = aim.nominate(min(n, shard.n_rows), cells=visits.reshape(-1), per_row=visits.shape[1], precise=True)
    scores, found = scores.view(shard.n_rows, -1), found.view(shard.n_rows, -1)
    itself = found == torch.arange(shard.n_rows, device=device, dtype=torch.int32)[:, None]
    order = torch.sort(torch.where(itself, -1.0, scores), dim=1, stable=True).indices[:, :n]
    found_first: Any = torch.gather(found, 1, order)
    return shard.give(found_first)
