"""Passes on the card that new centres come from: the d² passes of seeds, k-means++ inside cells, and those of swaps."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import torch

from globular.model.statistics import F64, HardStatistics, PotentialStatistics, SpareCenters
from globular.passes.torch.assign import sums_by
from globular.passes.torch.plain import in_order, running_sums
from globular.passes.torch.products import Aim
from globular.passes.torch.shard import TorchShard, totals_by
from globular.seam.center_passes import CellNeighbors, CellSeeds
from globular.seam.passes import AddSeeds, Halve, Index, Labels, Spare, TrySeeds

GOLDEN_RATIO = 0.6180339887498949
"""Added to a number between 0 and 1, it gives another one far from it, again and again."""
FEW = 3
"""New seeds up to which each is measured by differences at once."""


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
    # rows that are equal count as such: unit rows differ by rounding
    equal = (4 * torch.finfo(shard.exact).eps) ** 2 if shard.scales is not None else 0.0
    squared = torch.where(squared <= equal, 0.0, squared)
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
        potentials.append(shard.weighted(torch.minimum(squared, shard.d2_tensor)).sum())
    return torch.stack(potentials).cpu().numpy()


@TorchShard.implements(CellSeeds)
def cell_seeds(shard: TorchShard, work: CellSeeds) -> Index:
    """Seeds of all cells in rounds, in each half as many as a cell has already.

    Deviation: the seeds of one round are drawn by D² without a look at each other, as in k-means||, and a row that
    is drawn twice counts once. How many a round draws is known beforehand, so the host waits for none of them; what
    was drawn twice is drawn anew at the end.
    """
    quotas = np.asarray(work.quotas, dtype=np.int64)
    rounds = _planned(quotas)
    seeds = _SeedsInCells(shard, work, quotas)
    for owners, places, begins in zip(
        *(_uploaded(arrays, shard.device) for arrays in zip(*rounds, strict=True)), strict=True
    ):
        seeds.draw(owners, places, begins, seeds.uniforms[places])
    for again in count(1):
        places = torch.nonzero(seeds.chosen < 0)[:, 0]
        owners = seeds.owners[places]
        places = places[seeds.total()[owners] > 0]
        if not len(places):
            break
        owners = seeds.owners[places]
        begins = torch.nn.functional.pad(torch.cumsum(torch.bincount(owners, minlength=len(quotas)), dim=0), (1, 0))
        if not bool(seeds.draw(owners, places, begins, (seeds.uniforms[places] + again * GOLDEN_RATIO) % 1.0).any()):
            break  # where rounding has led to rows that cannot be drawn, there is nothing left but rounding
    return shard.give(seeds.chosen)


def _planned(quotas: Index) -> list[tuple[Index, Index, Index]]:
    """For every round the cells that draw, where their seeds go, and where those of each cell begin and end."""
    firsts, found, rounds = np.cumsum(quotas) - quotas, np.zeros_like(quotas), []
    while (found < quotas).any():
        more = np.minimum(quotas - found, np.maximum(found // 2, 1))
        begins = np.concatenate([[0], np.cumsum(more)])
        places = np.arange(begins[-1]) + np.repeat(firsts + found - begins[:-1], more)
        rounds.append((np.repeat(np.arange(len(quotas)), more), places, begins))
        found += more
    return rounds


def _uploaded(arrays: tuple[Index, ...], device: Any) -> list[Any]:
    """All of them in one message."""
    return list(torch.split(torch.as_tensor(np.concatenate(arrays), device=device), [len(each) for each in arrays]))


class _SeedsInCells:
    """The seeds so far, and how far every row is from those of its own cell."""

    def __init__(self, shard: TorchShard, work: CellSeeds, quotas: Index) -> None:
        device, n = shard.device, shard.n_rows
        self._shard, self.uniforms = shard, shard.tensor(work.uniforms)
        self._starts = shard.tensor(work.starts, torch.int64)
        numbers = torch.arange(len(quotas), device=device)
        self.owners = torch.repeat_interleave(
            numbers, shard.tensor(quotas, torch.int64), output_size=len(work.uniforms)
        )
        """The cell of every seed."""
        self._cells = torch.repeat_interleave(numbers.to(torch.int32), self._starts.diff(), output_size=n)
        draws = shard.tensor(quotas > 0, torch.float64)[self._cells.long()]
        self._weights = draws if shard.w is None else draws * shard.w
        self._d2 = torch.where(draws > 0, float("inf"), 0.0)
        self._shares = self._weights
        """w·d² of every row, by which it is drawn."""
        self.chosen = torch.full((len(work.uniforms),), -1, dtype=torch.int64, device=device)

    def total(self) -> Any:
        """Σ w·d² of every cell."""
        sums = torch.nn.functional.pad(running_sums(self._shares), (1, 0))
        return sums[self._starts[1:]] - sums[self._starts[:-1]]

    def draw(self, owners: Any, places: Any, begins: Any, uniforms: Any) -> Any:
        """One more row for each of these cells, which are ascending; which of them are new."""
        starts = self._starts
        sums = torch.nn.functional.pad(running_sums(self._shares), (1, 0))
        before, end = sums[starts[owners]], sums[starts[owners + 1]]
        rows = torch.searchsorted(sums[1:], before + uniforms * (end - before), right=True)
        rows = torch.minimum(torch.maximum(rows, starts[owners]), starts[owners + 1] - 1)
        rows = torch.sort(rows).values  # those of a cell stay together
        is_new = self._shares[rows] > 0
        is_new[1:] &= rows[1:] != rows[:-1]
        aim = Aim(self._shard, self._shard.take_tensor(rows), starts=begins)
        _, nearest = aim.nominate(1, cells=in_order(self._cells))
        squared, _ = aim.decide(nearest, nearest[:, 0].clone())
        # of rows that are equal the first is its own closest seed
        is_new &= (nearest[rows, 0] == torch.arange(len(rows), device=rows.device)) | (squared[rows] > 0)
        self.chosen[places] = torch.where(is_new, rows, -1)
        self._d2 = torch.minimum(self._d2, squared.to(torch.float64))
        self._d2[rows] = 0.0
        self._shares = self._weights * self._d2
        return is_new


@TorchShard.implements(Spare)
def spare(shard: TorchShard, work: Spare) -> SpareCenters:
    aim, n = Aim(shard, work.centers), len(work.centers)
    scores, found = aim.nominate(min(2, n), precise=True)
    labels, d2 = found[:, 0], scores[:, 0].to(shard.exact)
    shard.label_tensor.copy_(labels)
    total = totals_by(shard.weighted(scores[:, -1] - scores[:, 0]), shard.label_tensor, n)
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
