"""Cells of centres: a coarse map of the clusters, for finding the neighbourhood of a row or a centre from nothing."""

from __future__ import annotations

import numpy as np

from globular.algorithms.lloyd import KMeansOptions, lloyd
from globular.backends.protocol import Shard
from globular.model.cells import CenterCells
from globular.model.graph import Graph
from globular.model.statistics import F64

ADJACENT_CELLS = 8


def draw_cells(shard: Shard, centers: F64, rng: np.random.Generator, n_steps: int = 3) -> CenterCells:
    """Random centres as first middles, then a few Lloyd steps over the centres themselves. O(C √C D)."""
    C = len(centers)
    n_cells = max(1, round(np.sqrt(C)))
    local = shard.local(centers)
    middles = centers[np.sort(rng.choice(C, n_cells, replace=False))]
    for step in lloyd(local, middles, KMeansOptions(max_iter=n_steps)):
        middles = step.model
    local.hard_pass(middles, accumulate=False)
    cell_of = local.labels
    sizes = np.bincount(cell_of, minlength=n_cells)
    starts = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
    return CenterCells(middles[sizes > 0], np.argsort(cell_of, kind="stable"), starts)


def label_by_cells(shard: Shard, centers: F64, cells: CenterCells) -> int:
    """Label every row with the closest centre of its closest cell; returns the distances it took. O(N √C D)."""
    statistics = shard.routed_pass(cells.tree(centers), accumulate=False)
    shard.relabel(cells.order.astype(np.int32))
    return statistics.n_distances


def graph_by_cells(shard: Shard, centers: F64, cells: CenterCells, n_neighbors: int) -> Graph:
    """For every centre the closest others in its own and the adjacent cells, itself first. O(C √C D)."""
    n_cells = len(cells.middles)
    adjacent = shard.local(cells.middles).cell_neighbors(
        np.array([0, n_cells]), np.zeros((1, 1), dtype=np.intp), min(ADJACENT_CELLS, n_cells)
    )
    G = min(n_neighbors, len(centers))
    found = shard.local(centers[cells.order]).cell_neighbors(cells.starts, adjacent.astype(np.intp), G)
    graph = np.empty_like(found)
    graph[cells.order] = cells.order.astype(np.int32)[found]
    return graph
