"""Hard passes on the card: among all centres, in the closest cells, down a tree, and among neighbours."""

from __future__ import annotations

from typing import Any

import torch

from globular.backends.torch.products import Aim
from globular.backends.torch.shard import TorchShard
from globular.backends.torch.sums import cluster_sums, sums_by, wanted_sums
from globular.model.cells import VISITS_ABOVE, CellLevel, CenterCells
from globular.model.statistics import F64, FarRows, HardStatistics
from globular.seam.among import Down, Neighbors, Probe
from globular.seam.passes import Assign, Farthest, RoughSteps

NOMINEES = 2
"""Centres of a cell that a row measures by differences, if products cannot tell which is closer."""


def _statistics(
    shard: TorchShard, work: Assign, former: Any, d2: Any, tally: Any, n_distances: int, looks: Any = None
) -> HardStatistics:
    """Sum up what a pass has labelled; `looks` are more distances, to be added."""
    if "d2" in work.effect.writes:
        shard.d2_tensor.copy_(d2)
    sums = wanted_sums(shard, work, former)
    if looks is not None:
        tally = torch.cat([tally, looks.sum()[None]])
    objective, n_changed, *n_more = tally.tolist()
    return HardStatistics(*sums, objective, int(n_changed), n_distances + int(sum(n_more)))


def _former(shard: TorchShard, work: Assign) -> Any:
    """The labels before a pass, if it is to say what has moved."""
    return shard.label_tensor.clone() if work.want == "moves" else None


@TorchShard.implements(Assign)
def assign_all(shard: TorchShard, work: Assign) -> HardStatistics:
    """Every row to the exactly closest of all centres; bounds are not kept here, and change no result."""
    former = _former(shard, work)
    found = Aim(shard, work.centers).closest(shard.label_tensor)
    return _statistics(shard, work, former, *found, shard.n_rows * len(work.centers))


@TorchShard.implements(Assign, Probe)
def assign_probe(shard: TorchShard, work: Assign) -> HardStatistics:
    """Every row against the centres of its closest cells, and its own."""
    assert isinstance(work.among, Probe) and work.among.cells is not None
    cells, former = work.among.cells, _former(shard, work)
    visits, n_distances, routing = closest_cells(shard, cells, work.among.n_probes)
    aim = Aim(shard, work.centers, shard.tensor(cells.order, torch.int64), shard.tensor(cells.starts, torch.int64))
    kept = min(NOMINEES, len(work.centers))
    scores, found = aim.nominate(kept, cells=visits.reshape(-1), per_row=visits.shape[1])
    scores, found = scores.view(shard.n_rows, -1), found.view(shard.n_rows, -1)
    decided = aim.decide(found, shard.label_tensor, scores if aim.by_kernels else None, keep=True)
    looks = aim.looks if routing is None else torch.cat([aim.looks, routing])
    return _statistics(shard, work, former, *decided, n_distances + shard.n_rows, looks)


def closest_cells(shard: TorchShard, cells: CenterCells, n_probes: int) -> tuple[Any, int, Any]:
    """The cells that every row visits, (N, p), the number of distances to find them, and more of these to be added."""
    n_visits = cells.n_visits(n_probes)
    if cells.above is None:
        _, visits = Aim(shard, cells.middles).nominate(n_visits)
        return visits, shard.n_rows * len(cells.middles), None
    above = cells.above
    _, routes = Aim(shard, above.middles).nominate(min(VISITS_ABOVE, len(above.middles)))
    aim = Aim(shard, cells.middles, starts=shard.tensor(above.starts, torch.int64))
    scores, found = aim.nominate(n_visits, cells=routes.reshape(-1), per_row=routes.shape[1])
    scores, found = scores.view(shard.n_rows, -1), found.view(shard.n_rows, -1)
    lowest = torch.sort(scores, dim=1, stable=True).indices[:, :n_visits]
    visits = torch.gather(found, 1, lowest)
    # where so few cells are near, visit the closest again
    visits = torch.where(visits >= 0, visits, visits[:, :1])
    return visits, shard.n_rows * len(above.middles), aim.looks


@TorchShard.implements(Assign, Down)
def assign_down(shard: TorchShard, work: Assign) -> HardStatistics:
    """Every row down the tree to the closest centre of its own cell."""
    assert isinstance(work.among, Down)
    tree, route, former = work.among.tree, work.among.route, _former(shard, work)
    cells, labels = shard.state.tensor("cells", torch.int32, 0), shard.label_tensor
    n_distances, looks = 0, [torch.zeros(1, dtype=torch.int64, device=shard.device)]
    if route == "down":
        cells.copy_(labels)
    elif route == "top":
        cells.zero_()
        for level in tree.levels[:-1]:
            n_distances += _descend(shard, level, cells, cells, looks)[2]
    d2, tally, n_looks = _descend(shard, tree.levels[-1], cells, labels, looks)
    shard.d2_tensor.copy_(d2)
    sums, counts, errors = cluster_sums(shard, len(tree.centers), errors=True)
    given = wanted_sums(shard, work, former) if work.want != "sums" else (shard.give(sums), shard.give(counts))
    objective, n_changed, n_more = torch.cat([tally, torch.cat(looks).sum()[None]]).tolist()
    n_distances += n_looks + int(n_more)
    found = HardStatistics(given[0], given[1], objective, int(n_changed), n_distances)
    found.errors = shard.give(errors)
    return found


def _descend(shard: TorchShard, level: CellLevel, cells: Any, children: Any, looks: list[Any]) -> tuple[Any, Any, int]:
    """Each row from its cell to the closest child; squared distances, the tally, and distances.

    More distances, to be added, go to `looks`. `children` may be the same tensor as `cells`.
    """
    if len(level.starts) == 2:
        return *Aim(shard, level.centers).closest(children), shard.n_rows * len(level.centers)
    aim = Aim(shard, level.centers, starts=shard.tensor(level.starts, torch.int64))
    scores, found = aim.nominate(min(NOMINEES, len(level.centers)), cells=cells)
    looks.append(aim.looks)
    return *aim.decide(found, children, scores if aim.by_kernels else None), 0


def closest_neighbor(shard: TorchShard, work: Assign) -> HardStatistics:
    """Every row against the neighbours of its own centre, and nothing else; `neighbors` has the other searches."""
    assert isinstance(work.among, Neighbors)
    graph = shard.tensor(work.among.graph, torch.int32)
    candidates = graph[shard.label_tensor.long()]
    former = _former(shard, work)
    decided = Aim(shard, work.centers).decide(candidates, shard.label_tensor, keep=True)
    return _statistics(shard, work, former, *decided, shard.n_rows * candidates.shape[1])


@TorchShard.implements(RoughSteps)
def rough_steps(shard: TorchShard, work: RoughSteps) -> F64:
    """Nominees are taken at their word."""
    centers, n = shard.tensor(work.centers), len(work.centers)
    for _ in range(work.n_steps):
        _, found = Aim(shard, centers).nominate(1)
        sums, counts, _ = sums_by(shard, found[:, 0], n, errors=False)
        centers = torch.where(counts[:, None] > 0, sums / counts[:, None], centers)
    _, found = Aim(shard, centers).nominate(1)
    shard.label_tensor.copy_(found[:, 0])
    return shard.give(centers)


@TorchShard.implements(Farthest)
def farthest(shard: TorchShard, work: Farthest) -> FarRows:
    d2, _ = Aim(shard, work.centers).decide(shard.label_tensor[:, None], shard.label_tensor.clone())
    if shard.w is not None:
        d2 = torch.where(shard.w > 0, d2, -1.0)
    order = torch.sort(d2, descending=True, stable=True).indices[: work.n]
    order = order[d2[order] >= 0]
    labels = shard.label_tensor[order].to(torch.int64).cpu().numpy()
    weights = torch.ones_like(d2[order]) if shard.w is None else shard.w[order]
    rows, squared = shard.take_tensor(order), d2[order].to(torch.float64)
    return FarRows(rows.cpu().numpy(), squared.cpu().numpy(), weights.to(torch.float64).cpu().numpy(), labels)
