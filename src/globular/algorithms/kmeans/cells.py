"""Cells of centres: a coarse map of the clusters, for finding the neighbourhood of a row or a centre from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.graphs import nearest_graph, neighbor_graph
from globular.algorithms.kmeans.centers import update_centers
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.algorithms.steps import last_step
from globular.model.cells import CenterCells, starts_of
from globular.model.graph import Graph
from globular.model.statistics import F64, HardStatistics
from globular.seam.among import Down, Probe
from globular.seam.center_passes import RoughCells
from globular.seam.passes import AddSeeds, Assign, LabelBySeeds, Relabel, SumByLabel
from globular.seam.shard import Shard
from globular.threads import single_threaded_blas

CELLS_OF_CELLS_FROM = 200_000
"""Number of centres from which √C cells cost more than two levels of C^(1/3) each."""
LARGEST_CELL = 4
"""Times the mean number of centres that a cell may have; a larger one is halved until it has not. In hundreds of
columns most centres may be closest to one and the same middle, and to search that cell is to look at all centres."""
EXACT_UP_TO = 1000
"""Up to this number, rows without labels look at all centres: matrix products make up for the larger number."""


def draw_cells(shard: Shard, centers: F64, rng: np.random.Generator) -> CenterCells:
    """Random centres as centres of the cells, then a few Lloyd steps over the centres themselves. O(C √C D) at most."""
    C = len(centers)
    if C >= CELLS_OF_CELLS_FROM:
        return _draw_cells_of_cells(shard, centers, rng)
    n_cells = max(1, round(np.sqrt(C)))
    cells = group_centers(shard, centers, centers[np.sort(rng.choice(C, n_cells, replace=False))])
    most = LARGEST_CELL * C // n_cells
    if np.diff(cells.starts).max() <= most:
        return cells
    members = np.split(np.asarray(cells.order), np.asarray(cells.starts)[1:-1])
    return _without_giants(np.asarray(centers), members, most, rng)


def group_centers(shard: Shard, centers: F64, first: F64) -> CenterCells:
    """Cells after some steps from these middles; float32, about the mean and in units of the range, is exact enough."""
    whole = shard.local(centers)
    if not whole.why_not(RoughCells):
        return whole.run(RoughCells(first, 3))
    mean = centers.mean(axis=0)
    about = centers - mean
    unit = float(np.abs(about).max()) or 1.0
    local = shard.local((about / unit).astype(np.float32))
    middles = last_step(lloyd(local, (first - mean) / unit, KMeansOptions(max_iter=3))).model
    local.run(Assign(middles, want="labels"))
    sizes = np.bincount(local.labels, minlength=len(first))
    filled = sizes > 0
    order = np.argsort(local.labels, kind="stable")
    return CenterCells(mean + unit * middles[filled], order, starts_of(sizes[filled]))


@single_threaded_blas  # the same bits for any number of threads
def _without_giants(centers: F64, cells: list[NDArray[np.intp]], most: int, rng: np.random.Generator) -> CenterCells:
    """Cells of at most `most` centres each."""
    parts = [part for cell in cells for part in _halved(centers, cell, most, rng)]
    middles = np.stack([centers[part].mean(axis=0) for part in parts])
    return CenterCells(middles, np.concatenate(parts), np.cumsum([0, *map(len, parts)]))


def _halved(centers: F64, members: NDArray[np.intp], most: int, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
    """A cell in parts of at most `most` centres, halves of halves, each across a direction of large variance."""
    if len(members) <= most:
        yield members
        return
    about_mean = centers[members] - centers[members].mean(axis=0)
    direction = about_mean.T @ (about_mean @ rng.normal(size=centers.shape[1]))
    order = np.argsort(about_mean @ direction, kind="stable")
    for half in (order[: len(order) // 2], order[len(order) // 2 :]):
        yield from _halved(centers, members[half], most, rng)


def _draw_cells_of_cells(shard: Shard, centers: F64, rng: np.random.Generator) -> CenterCells:
    """C^(2/3) cells, found by probing cells of their centres. O(C^(4/3) D)."""
    C = len(centers)
    cell_centers = centers[np.sort(rng.choice(C, round(C ** (2 / 3)), replace=False))]
    local = shard.local(centers)
    label_by_cells(local, cell_centers, draw_cells(shard, cell_centers, rng))
    for _ in range(3):
        statistics = local.run(Assign(cell_centers, Probe(draw_cells(shard, cell_centers, rng), 1)))
        cell_centers = update_centers(
            local, statistics, cell_centers, unit=False, relocate=False, rows_follow=False
        ).centers
    occupied = np.bincount(local.labels, minlength=len(cell_centers)) > 0
    above = draw_cells(shard, cell_centers[occupied], rng)
    # numbered in the order of the cells above
    names = np.full(len(cell_centers), -1)
    names[np.flatnonzero(occupied)[above.order]] = np.arange(len(above.order))
    cell_of = names[local.labels]
    starts = np.concatenate([[0], np.cumsum(np.bincount(cell_of))])
    cell_centers, order = cell_centers[occupied][above.order], np.arange(len(above.order))
    return CenterCells(cell_centers, np.argsort(cell_of, kind="stable"), starts, replace(above, order=order))


def label_by_cells(shard: Shard, centers: F64, cells: CenterCells) -> HardStatistics:
    """Label every row with the closest centre of its closest cell. O(N √C D)."""
    tree = cells.tree(centers)
    statistics = shard.run(Assign(tree.centers, Down(tree), "labels"))
    shard.run(Relabel(cells.order.astype(np.int32)))
    return statistics


def search_widely(shard: Shard, centers: F64, n_probes: int, rng: np.random.Generator) -> HardStatistics:
    """A first E-step for rows without labels: twice as many probes, for what it misses costs whole iterations later.

    Squared distances to the own centre are left behind as by a pass among `Probe`.
    """
    if len(centers) <= EXACT_UP_TO:
        found = shard.run(AddSeeds(centers))
        shard.run(LabelBySeeds())
        sums = shard.run(SumByLabel(len(centers)))
        return replace(sums, objective=found.potential, n_changed=shard.n_rows, n_distances=found.n_distances)
    n_distances = label_by_cells(shard, centers, draw_cells(shard, centers, rng)).n_distances
    statistics = shard.run(Assign(centers, Probe(draw_cells(shard, centers, rng), 2 * n_probes)))
    return replace(statistics, n_distances=statistics.n_distances + n_distances)


def graph_by_cells(shard: Shard, centers: F64, cells: CenterCells | None, n_neighbors: int) -> Graph:
    """For every centre the closest others in its own and the adjacent cells, itself first. O(C √C D).

    Without cells the closest of all.
    """
    if cells is None:
        return nearest_graph(shard, centers, n_neighbors)
    found = neighbor_graph(shard, cells.tree(centers), min(n_neighbors, len(centers)))
    graph = np.empty_like(found)
    graph[cells.order] = cells.order.astype(np.int32)[found]
    return graph
