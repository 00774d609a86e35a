"""The routed pass: every row down a tree of cells to the closest centre of its own cell.

Rows are grouped by the cell they have reached; a group shares its candidates, so each level is a matrix product per
cell. Products only nominate, as in the hard pass: the child a row goes to is exactly the closest one.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from globular.backends.cpu.cells import CellProduct
from globular.backends.cpu.shard import CpuShard
from globular.backends.cpu.sums import former_labels, wanted_sums
from globular.model.cells import CellLevel
from globular.model.statistics import F64, HardStatistics
from globular.seam.among import Down
from globular.seam.passes import Assign, CellNeighbors, Index, Labels
from globular.threads import even_ranges, run_all

FEW_NEIGHBORS = 3
"""So few neighbours are found by minima one after the other."""
NEIGHBOR_ENTRIES = 2**22
"""Distances between centres held at once by a thread: 32 MB."""


@CpuShard.implements(Assign, Down)
def assign_down(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row down the tree to the closest centre of its own cell."""
    assert isinstance(work.among, Down)
    tree, route, former = work.among.tree, work.among.route, former_labels(shard, work)
    cells = cast(Labels, shard.state.get("cells", np.int32, 0))
    labels, d2 = shard.labels, shard.squared_distances
    n_distances = 0
    if route == "down":
        cells[:] = labels
    elif route == "top":
        cells[:] = 0
        for level in tree.levels[:-1]:
            n_distances += _descend(shard, level, cells, cells, d2)[1]
    n_changed, n_last = _descend(shard, tree.levels[-1], cells, labels, d2)
    weighted = d2 * shard.weights if len(shard.weights) else d2
    errors = cast(F64, np.bincount(labels, weighted, minlength=len(tree.centers)))
    sums = wanted_sums(shard, work, former)
    return HardStatistics(*sums, float(errors.sum()), n_changed, n_distances + n_last, errors=errors)


def _descend(shard: CpuShard, level: CellLevel, cells: Labels, children: Labels, d2: F64) -> tuple[int, int]:
    """Send each row from its cell to the closest child; how many changed, and distances.

    `children` may be the same array as `cells`.
    """
    return CellProduct(shard, level.centers, np.arange(len(level.centers)), level.starts).descend(cells, children, d2)


@CpuShard.implements(CellNeighbors)
def cell_neighbors(shard: CpuShard, work: CellNeighbors) -> Labels:
    """Matrix products of blocks of a cell, float64."""
    starts, adjacent, n_neighbors = work.starts, work.adjacent, work.n_neighbors
    centers = shard.take(np.arange(shard.n_rows))
    out = np.empty((shard.n_rows, n_neighbors), dtype=np.int32)
    sizes = np.diff(starts)

    def around(cell: int) -> Index:
        """The rows to look at from a cell, ascending."""
        cells = np.sort(adjacent[cell])
        if sizes[cells].sum() < n_neighbors:
            cells = np.arange(len(sizes))
        return np.concatenate([np.arange(starts[g], starts[g + 1]) for g in cells])

    def of_block(task: tuple[int, int, int]) -> None:
        cell, begin, end = task
        own, others = np.arange(starts[cell] + begin, starts[cell] + end), around(cell)
        offset = centers[starts[cell]]
        a, b = centers[own] - offset, centers[others] - offset
        distances = np.einsum("ij,ij->i", b, b) - 2.0 * (a @ b.T)
        distances[np.arange(len(own)), np.searchsorted(others, own)] = -np.inf
        nearest = _smallest(distances, n_neighbors)
        out[own] = others[nearest]

    rows_per_block = [max(16, NEIGHBOR_ENTRIES // max(1, len(around(cell)))) for cell in range(len(sizes))]
    tasks = [(cell, *span) for cell, n in enumerate(rows_per_block) for span in even_ranges(int(sizes[cell]), n)]
    run_all(of_block, tasks, shard.n_threads)
    return out


def _smallest(values: F64, n: int) -> Index:
    """Columns of the n smallest values of every row, smallest first. Few are found by minima; spoils the values."""
    if n <= FEW_NEIGHBORS:
        columns = np.empty((len(values), n), dtype=np.intp)
        for k in range(n):
            columns[:, k] = values.argmin(axis=1)
            values[np.arange(len(values)), columns[:, k]] = np.inf
        return columns
    if n < values.shape[1]:
        columns = np.sort(np.argpartition(values, n - 1, axis=1)[:, :n], axis=1)
    else:
        columns = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    order = np.argsort(np.take_along_axis(values, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)
