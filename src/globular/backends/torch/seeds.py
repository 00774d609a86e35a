"""The d² passes on the card: how far every row is from its closest seed, and k-means++ inside cells."""

from __future__ import annotations

from typing import Any

import torch

from globular.backends.torch.products import Aim
from globular.backends.torch.shard import TorchShard, running_sums
from globular.model.statistics import F64, PotentialStatistics
from globular.seam.passes import AddSeeds, CellSeeds, Index, TrySeeds

FEW = 3
"""New seeds up to which each is measured by differences at once."""


def _zero_level(shard: TorchShard) -> float:
    """Squared distance to a new seed up to which a row counts as equal to it: unit rows differ by rounding."""
    return (4 * torch.finfo(shard.exact).eps) ** 2 if shard.scales is not None else 0.0


def _distances_to(shard: TorchShard, seeds: Any) -> tuple[Any, Any]:
    """The closest seed of every row, and the squared distance to it."""
    aim, found = Aim(shard, seeds), torch.full_like(shard.seed_tensor, -1)
    if aim.n > FEW:
        return found, aim.closest(found)[0]
    numbers = torch.arange(aim.n, dtype=torch.int32, device=shard.device)
    return found, aim.decide(numbers.expand(shard.n_rows, -1), found)[0]


@TorchShard.implements(AddSeeds)
def add_seeds(shard: TorchShard, work: AddSeeds) -> PotentialStatistics:
    d2, seeds = shard.d2_tensor, shard.seed_tensor
    if work.n_before == 0:
        d2.fill_(float("inf"))
        seeds.fill_(-1)
    found, squared = _distances_to(shard, work.seeds)
    squared = torch.where(squared <= _zero_level(shard), 0.0, squared)
    closer = squared < d2
    d2.copy_(torch.where(closer, squared, d2))
    seeds.copy_(torch.where(closer, found + work.n_before, seeds))
    return PotentialStatistics(float(shard.errors().sum()), shard.n_rows * len(work.seeds))


@TorchShard.implements(TrySeeds)
def try_seeds(shard: TorchShard, work: TrySeeds) -> F64:
    aim, potentials = Aim(shard, work.seeds), []
    for c in range(aim.n):
        number = torch.full((shard.n_rows,), c, dtype=torch.int32, device=shard.device)
        squared, _ = aim.decide(number[:, None], number.clone())
        least = torch.minimum(squared, shard.d2_tensor).to(torch.float64)
        potentials.append((least if shard.w is None else least * shard.w).sum())
    return torch.stack(potentials).cpu().numpy()


@TorchShard.implements(CellSeeds)
def cell_seeds(shard: TorchShard, work: CellSeeds) -> Index:
    """Seeds of all cells in rounds, in each half as many as a cell has already.

    Deviation: the seeds of one round are drawn by D² without a look at each other, as in k-means||; the same row is
    taken once. A card would spend its time on one cell after the other otherwise.
    """
    device, n, starts = shard.device, shard.n_rows, shard.tensor(work.starts, torch.int64)
    quotas, uniforms = shard.tensor(work.quotas, torch.int64), shard.tensor(work.uniforms)
    n_cells, firsts = len(quotas), torch.cumsum(quotas, dim=0) - quotas
    numbers, cells = torch.arange(n_cells, device=device), torch.arange(n_cells, device=device, dtype=torch.int32)
    cells = torch.repeat_interleave(cells, starts.diff(), output_size=n)
    weights = torch.ones(n, dtype=torch.float64, device=device) if shard.w is None else shard.w
    d2 = torch.full((n,), float("inf"), dtype=torch.float64, device=device)
    chosen = torch.full((len(uniforms),), -1, dtype=torch.int64, device=device)
    found, shares = torch.zeros_like(quotas), weights
    while True:
        sums = torch.nn.functional.pad(running_sums(shares), (1, 0))
        before, total = sums[starts[:-1]], sums[starts[1:]] - sums[starts[:-1]]
        more = torch.where(total > 0, torch.minimum(quotas - found, (found // 2).clamp_min(1)), 0)
        owners = torch.repeat_interleave(numbers, more)
        if not len(owners):
            return shard.give(chosen)
        within = torch.arange(len(owners), device=device) - (torch.cumsum(more, dim=0) - more)[owners]
        masses = before[owners] + uniforms[(firsts + found)[owners] + within] * total[owners]
        rows = torch.searchsorted(sums[1:], masses, right=True)
        rows = torch.minimum(torch.maximum(rows, starts[owners]), starts[owners + 1] - 1)
        rows = torch.unique(rows[shares[rows] > 0])
        owners = cells[rows].long()
        counts = torch.bincount(owners, minlength=n_cells)
        # where rounding has led to rows that cannot be drawn, there is nothing left but rounding
        quotas = torch.where((more > 0) & (counts == 0), found, quotas)
        begins = torch.nn.functional.pad(torch.cumsum(counts, dim=0), (1, 0))
        places = (firsts + found)[owners] + torch.arange(len(rows), device=device) - begins[owners]
        chosen[places] = rows
        found = found + counts
        aim = Aim(shard, shard.take_tensor(rows), starts=begins)
        _, nearest = aim.nominate(1, cells=cells)
        squared, _ = aim.decide(nearest, nearest[:, 0].clone())
        d2 = torch.minimum(d2, squared.to(torch.float64))
        d2[rows] = 0.0
        shares = weights * d2
