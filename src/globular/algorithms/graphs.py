"""Which centres are close to which: neighbourhoods from distances between centres."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.model.cells import CellTree
from globular.model.graph import Graph
from globular.model.statistics import F64, PairStatistics
from globular.seam.center_passes import CellNeighbors, EstimateNeighbors
from globular.seam.passes import Labels
from globular.seam.shard import Shard

ADJACENT_CELLS = 8


def nearest_graph(shard: Shard, centers: F64, n_neighbors: int) -> Graph:
    """The centres closest to each, itself first. O(C²D)."""
    C = len(centers)
    one_cell = np.zeros((1, 1), dtype=np.intp)
    return shard.local(centers).run(CellNeighbors(np.array([0, C], dtype=np.intp), one_cell, min(n_neighbors, C)))


def estimated_graph(shard: Shard, centers: F64, graph: Graph, pairs: PairStatistics) -> Graph:
    """The graph of these centres by Eq. 8, after an E-step that has collected what it takes."""
    return shard.local(centers).run(EstimateNeighbors(graph, pairs))


def neighbor_graph(shard: Shard, tree: CellTree, n_neighbors: int) -> Labels:
    """For each centre the closest ones of its own and of adjacent cells; adjacency comes down from level to level."""
    adjacent: NDArray[np.intp] = np.zeros((1, 1), dtype=np.intp)
    neighbors = np.zeros((1, 1), dtype=np.int32)
    for depth, level in enumerate(tree.levels):
        is_last = depth == len(tree.levels) - 1
        n = n_neighbors if is_last else min(ADJACENT_CELLS, len(level.centers))
        neighbors = shard.local(level.centers).run(CellNeighbors(level.starts, adjacent, n))
        adjacent = neighbors.astype(np.intp)
    return neighbors
