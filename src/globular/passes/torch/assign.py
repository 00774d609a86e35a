"""Hard passes on the card: among all centres, in the closest cells, down a tree, and among neighbours."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from globular.model.cells import VISITS_ABOVE, CellLevel, CenterCells
from globular.model.statistics import FarRows, HardStatistics
from globular.passes.torch.plain import group
from globular.passes.torch.products import Aim
from globular.passes.torch.shard import CardShard, TorchShard, engine
from globular.seam.among import Down, Neighbors, Probe
from globular.seam.center_passes import RoughCells
from globular.seam.passes import Assign, Farthest, SumByLabel, TakeLabels


def sums_by(shard: TorchShard, labels: Any, n_clusters: int, *, errors: bool, rows: Any = None) -> Any:
    """(C, D + 2): Σ w x, Σ w and, if asked, Σ w d² of the rows of each label, or of these rows, float64. O(N · D).

    Long clusters are cut, and the pieces added in order.
    """
    if n_clusters == 0:
        return torch.empty((0, shard.n_columns + 2), dtype=torch.float64, device=shard.device)
    grouping = group(labels, n_clusters)
    if rows is not None:
        grouping.order = rows[grouping.order]
    d2 = shard.d2_tensor if errors else None
    return engine(shard.device, shard.exact).sum_clusters(shard.x, shard.factors, shard.unit_weights, d2, grouping)


@CardShard.implements(TakeLabels)
def take_labels(shard: CardShard, work: TakeLabels) -> None:
    own = np.ascontiguousarray(work.labels[shard.first_row : shard.first_row + shard.n_rows])
    shard.label_tensor.copy_(torch.from_numpy(own))


@TorchShard.implements(SumByLabel)
def sum_by_label(shard: TorchShard, work: SumByLabel) -> HardStatistics:
    sums = sums_by(shard, shard.label_tensor, work.n_clusters, errors=False)
    return HardStatistics(shard.give(sums[:, :-2]), shard.give(sums[:, -2]), 0.0, 0, 0)


NOMINEES = 2
"""Centres of a cell that a row measures by differences, if products cannot tell which is closer."""


OUT_OF_REACH = 1e37
"""Added to the squared norm of a cell that is none."""
TILE = 128
"""Cells in multiples of which passes are recorded: their number changes with every draw, by a few."""


def label_sums(shard: TorchShard, want: str, n_clusters: int) -> Any:
    """(C, D + 2) sums of all rows by label, if they are wanted, else none of them."""
    return sums_by(shard, shard.label_tensor, n_clusters if want == "sums" else 0, errors=False)


def hard_statistics(shard: TorchShard, n_distances: int, tally: list[float], sums: Any) -> HardStatistics:
    """What a pass has found; the tally is the objective, rows that changed, and more distances."""
    objective, n_changed, *n_more = tally
    given = shard.give(sums[:, :-2].clone()), shard.give(sums[:, -2].clone())
    return HardStatistics(*given, objective, int(n_changed), n_distances + int(sum(n_more)))


@TorchShard.implements(Assign)
def assign_all(shard: TorchShard, work: Assign) -> HardStatistics:
    """Every row to the exactly closest of all centres; bounds are not kept here, and change no result."""
    centers, n = shard.tensor(work.centers), len(work.centers)
    if n > 1 and shard.mostly_sure and Aim(shard, centers).by_kernels:
        before = shard.label_tensor.clone()
        found, sums = shard.recordings.run(("all", work.want), partial(_closest_at_once, shard, work.want), centers)
        *tally, n_unsure = found.tolist()
        if n_unsure == 0:
            return hard_statistics(shard, shard.n_rows * n, tally, sums)
        shard.mostly_sure = False
        shard.label_tensor.copy_(before)
    _, found = Aim(shard, centers).closest(shard.label_tensor)
    return hard_statistics(shard, shard.n_rows * n, found.tolist(), label_sums(shard, work.want, n))


def _closest_at_once(shard: TorchShard, want: str, centers: Any) -> tuple[Any, Any]:
    _, tally = Aim(shard, centers).closest_at_once(shard.label_tensor)
    return tally, label_sums(shard, want, len(centers))


@TorchShard.implements(Assign, Probe)
def assign_probe(shard: TorchShard, work: Assign) -> HardStatistics:
    """Every row against the centres of its closest cells, and its own."""
    assert isinstance(work.among, Probe) and work.among.cells is not None
    cells, centers = work.among.cells, shard.tensor(work.centers)
    order, starts = shard.tensor(cells.order, torch.int64), shard.tensor(cells.starts, torch.int64)
    n_visits, n_cells = cells.n_visits(work.among.n_probes), len(cells.middles)
    if cells.above is None:
        middles, more = shard.tensor(cells.middles), -n_cells % TILE
        given = (
            centers, order, torch.nn.functional.pad(starts, (0, more), value=len(centers)),
            torch.nn.functional.pad(middles, (0, 0, 0, more)),
            torch.arange(n_cells + more, device=shard.device).ge(n_cells).to(shard.exact) * OUT_OF_REACH,
        )  # fmt: skip
        probe = partial(_probe, shard, work.want, n_visits)
        tally, sums = shard.recordings.run(("probe", work.want, n_visits), probe, *given)
        n_distances = n_cells
    else:
        visits, looks = closest_small_cells(shard, cells, n_visits)
        tally = _visit(shard, centers, order, starts, visits, looks)
        sums, n_distances = label_sums(shard, work.want, len(centers)), len(cells.above.middles)
    return hard_statistics(shard, shard.n_rows * (n_distances + 1), tally.tolist(), sums)


def _probe(
    shard: TorchShard, want: str, n_visits: int, centers: Any, order: Any, starts: Any, middles: Any, added: Any
) -> tuple[Any, Any]:
    """A pass whose cells have been filled up with some that are out of reach."""
    _, visits = Aim(shard, middles, added=added).nominate(n_visits)
    return _visit(shard, centers, order, starts, visits), label_sums(shard, want, len(centers))


def _visit(shard: TorchShard, centers: Any, order: Any, starts: Any, visits: Any, looks: Any = None) -> Any:
    """Every row to the closest centre of the cells it visits, or its own; returns the tally, with distances."""
    aim = Aim(shard, centers, order, starts)
    scores, found = aim.nominate(min(NOMINEES, aim.n), cells=visits.reshape(-1), per_row=visits.shape[1])
    scores, found = scores.view(shard.n_rows, -1), found.view(shard.n_rows, -1)
    d2, tally = aim.decide(found, shard.label_tensor, scores, keep=True)
    shard.d2_tensor.copy_(d2)
    n_looks = aim.looks.sum() if looks is None else aim.looks.sum() + looks.sum()
    return torch.cat([tally, n_looks.to(torch.float64)[None]])


def closest_small_cells(shard: TorchShard, cells: CenterCells, n_visits: int) -> tuple[Any, Any]:
    """Those of the cells in cells that every row visits, (N, p), and distances to find them, to be added."""
    above = cells.above
    assert above is not None
    _, routes = Aim(shard, above.middles).nominate(min(VISITS_ABOVE, len(above.middles)))
    aim = Aim(shard, cells.middles, starts=shard.tensor(above.starts, torch.int64))
    scores, found = aim.nominate(n_visits, cells=routes.reshape(-1), per_row=routes.shape[1])
    scores, found = scores.view(shard.n_rows, -1), found.view(shard.n_rows, -1)
    lowest = torch.sort(scores, dim=1, stable=True).indices[:, :n_visits]
    visits = torch.gather(found, 1, lowest)
    # where so few cells are near, visit the closest again
    return torch.where(visits >= 0, visits, visits[:, :1]), aim.looks


@TorchShard.implements(Assign, Down)
def assign_down(shard: TorchShard, work: Assign) -> HardStatistics:
    """Every row down the tree to the closest centre of its own cell."""
    assert isinstance(work.among, Down)
    tree, route = work.among.tree, work.among.route
    cells, labels = shard.state.get("cells", torch.int32, 0), shard.label_tensor
    n_distances, looks = 0, [torch.zeros(1, dtype=torch.int64, device=shard.device)]
    if route == "down":
        cells.copy_(labels)
    elif route == "top":
        cells.zero_()
        for level in tree.levels[:-1]:
            n_distances += _descend(shard, level, cells, cells, looks)[2]
    d2, tally, n_looks = _descend(shard, tree.levels[-1], cells, labels, looks)
    shard.d2_tensor.copy_(d2)
    sums = sums_by(shard, labels, len(tree.centers), errors=True)
    tally = torch.cat([tally, torch.cat(looks).sum()[None]])
    found = hard_statistics(shard, n_distances + n_looks, tally.tolist(), sums if work.want == "sums" else sums[:0])
    found.errors = shard.give(sums[:, -1])
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
    return *aim.decide(found, children, scores), 0


def closest_neighbor(shard: TorchShard, work: Assign) -> HardStatistics:
    """Every row against the neighbours of its own centre, and nothing else; `neighbors` has the other searches."""
    assert isinstance(work.among, Neighbors)
    graph = shard.tensor(work.among.graph, torch.int32)
    candidates = graph[shard.label_tensor.long()]
    _, tally = Aim(shard, work.centers).decide(candidates, shard.label_tensor, keep=True)
    sums = label_sums(shard, work.want, len(work.centers))
    return hard_statistics(shard, shard.n_rows * candidates.shape[1], tally.tolist(), sums)


@TorchShard.implements(RoughCells)
def rough_cells(shard: TorchShard, work: RoughCells) -> CenterCells:
    """Nominees are taken at their word."""
    given = [shard.x, shard.tensor(work.middles)]
    if shard.w is None and shard.scales is None:
        found = shard.lent_recordings.run(("cells", work.n_steps), partial(_rough_cells_of, work.n_steps), *given)
    else:
        found = _rough_cells(shard, work.n_steps, given[1])
    middles, order, starts = found
    ends = starts.cpu().numpy()  # few numbers, that algorithms look at
    n = int(np.count_nonzero(np.diff(ends)))
    return CenterCells(shard.give(middles[:n].clone()), shard.give(order.clone()), ends[: n + 1])


def _rough_cells_of(n_steps: int, rows: Any, middles: Any) -> tuple[Any, ...]:
    return _rough_cells(TorchShard(rows), n_steps, middles)


def _rough_cells(shard: TorchShard, n_steps: int, middles: Any) -> tuple[Any, ...]:
    """Middles of cells, rows in the order of cells, and where each begins; empty ones last."""
    for _ in range(n_steps):
        _, found = Aim(shard, middles).nominate(1)
        sums = sums_by(shard, found[:, 0], len(middles), errors=False)
        middles = torch.where(sums[:, -2:-1] > 0, sums[:, :-2] / sums[:, -2:-1], middles)
    _, found = Aim(shard, middles).nominate(1)
    cells = group(found[:, 0], len(middles))
    sizes = cells.starts.diff()
    filled_first = torch.sort((sizes == 0).to(torch.int8), stable=True).indices
    starts = torch.nn.functional.pad(torch.cumsum(sizes[filled_first], dim=0), (1, 0))
    return middles[filled_first], cells.order, starts


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
