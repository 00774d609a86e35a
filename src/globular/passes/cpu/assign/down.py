"""The routed pass: every row down a tree of cells to the closest centre of its own cell.

Rows are grouped by the cell they have reached; a group shares its candidates, so each level is a matrix product per
cell. Products only nominate, as in the hard pass: the child a row goes to is exactly the closest one.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from globular.jit import Queue, Scratch, inline, kernel, new_queue, share_kernel, take_number
from globular.jit.blas import multiply_rows
from globular.model.cells import CellLevel
from globular.model.statistics import F64, HardStatistics
from globular.passes.cpu.cells import CellProduct, Known, cell_tasks
from globular.passes.cpu.engine.decide import insert
from globular.passes.cpu.shard import CpuShard
from globular.passes.cpu.sums import wanted_sums
from globular.passes.host import sum_by
from globular.seam.among import Down
from globular.seam.center_passes import CellNeighbors
from globular.seam.passes import Assign, Labels
from globular.threads import SECONDS_PER_LOOK, worth_waking

CENTERS_PER_TASK = 128
"""Centres whose distances to as many others a thread holds at once."""


@inline
def load_about(centers: Any, first: int, n: int, origin: int, out: Any, norms: Any) -> None:
    """Centres first … first + n − 1 about the centre `origin`, and the squares of their lengths. O(n · D)."""
    for k in range(n):
        total = 0.0
        for j in range(centers.shape[1]):
            value = centers[first + k, j] - centers[origin, j]
            out[k, j] = value
            total += value * value
        norms[k] = total


@kernel
def neighbors_in_cells(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T, 3) a cell, and some of its centres, begin … end − 1
    centers: Any,  # IN  (C, D) float64, in the order of their cells
    starts: Any,  # IN  (cells + 1,)
    adjacent: Any,  # IN  (·,) the cells to look at from each cell, ascending
    bounds: Any,  # IN  (cells + 1,) where those of a cell begin
    own: Scratch,  # scratch (A, D), A no less than the centres of a task
    others: Scratch,  # scratch (B, D)
    norms: Scratch,  # scratch (max(A, B),)
    products: Scratch,  # scratch (A, B)
    costs: Scratch,  # scratch (A, G)
    out: Any,  # OUT (C, G) each centre itself, then the closest of those cells, closest first (ties: lower index)
) -> None:
    """Differences about a centre of the cell, float64: far from zero little cancels. O(C · D · looked at)."""
    B, G = others.shape[0], out.shape[1]
    t = take_number(queue)
    while t < tasks.shape[0]:
        cell, begin, n = tasks[t, 0], tasks[t, 1], tasks[t, 2] - tasks[t, 1]
        load_about(centers, begin, n, starts[cell], own, norms)
        for i in range(n):
            costs[i, 0], out[begin + i, 0] = -np.inf, begin + i
            for k in range(1, out.shape[1]):
                costs[i, k], out[begin + i, k] = np.inf, begin + i
        for a in range(bounds[cell], bounds[cell + 1]):
            stop = starts[adjacent[a] + 1]
            for first in range(starts[adjacent[a]], stop, B):
                m = min(B, stop - first)
                load_about(centers, first, m, starts[cell], others, norms)
                multiply_rows(own, 0, n, others, 0, m, products)
                for i in range(n):
                    for k in range(m):
                        cost = norms[k] - 2.0 * products[i, k]
                        if cost < costs[i, G - 1] and first + k != begin + i:
                            insert(cost, first + k, costs[i], out[begin + i], G)
        t = take_number(queue)


@CpuShard.implements(Assign, Down)
def assign_down(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row down the tree to the closest centre of its own cell."""
    assert isinstance(work.among, Down)
    tree, route = work.among.tree, work.among.route
    cells = cast(Labels, shard.state.get("cells", np.int32, 0))
    labels, d2 = shard.labels, shard.squared_distances
    n_distances = 0
    if route == "down":
        cells[:] = labels
    elif route == "top":
        cells[:] = 0
        for level in tree.levels[:-1]:
            n_distances += _descend(shard, level, cells, cells, d2)
    before = labels.copy()
    n_distances += _descend(shard, tree.levels[-1], cells, labels, d2)
    n_changed = int(np.count_nonzero(before != labels))
    errors = sum_by(shard, labels, len(tree.centers), errors=True)
    sums = wanted_sums(shard, work)
    return HardStatistics(*sums, float(errors.sum()), n_changed, n_distances, errors=errors)


def _descend(shard: CpuShard, level: CellLevel, cells: Labels, children: Labels, d2: F64) -> int:
    """Send each row from its cell to the closest child; returns distances. `children` may be the array `cells`."""
    product = CellProduct(shard, level.centers, None, level.starts)
    return product.search(cells, d2, children, Known.NOTHING)


@CpuShard.implements(CellNeighbors)
def cell_neighbors(shard: CpuShard, work: CellNeighbors) -> Labels:
    """Matrix products of blocks of a cell, float64."""
    starts, n_neighbors = np.asarray(work.starts, dtype=np.int64), work.n_neighbors
    centers, sizes = shard.take(np.arange(shard.n_rows)), np.diff(starts)
    out: Labels = np.empty((shard.n_rows, n_neighbors), dtype=np.int32)
    everywhere = np.arange(len(sizes))
    enough = sizes[work.adjacent].sum(axis=1) >= n_neighbors
    around = [cells if wide else everywhere for cells, wide in zip(np.sort(work.adjacent), enough, strict=True)]
    bounds = np.concatenate([[0], np.cumsum([len(cells) for cells in around])])
    adjacent, tasks, queue = np.concatenate(around), cell_tasks(starts, CENTERS_PER_TASK), new_queue()

    def search() -> None:
        own, others = np.empty((2, CENTERS_PER_TASK, shard.n_columns))
        norms, products = np.empty(CENTERS_PER_TASK), np.empty((CENTERS_PER_TASK, CENTERS_PER_TASK))
        neighbors_in_cells(
            queue, tasks, centers, starts, adjacent, bounds, own, others, norms, products,
            np.empty((CENTERS_PER_TASK, n_neighbors)), out,
        )  # fmt: skip

    pairs = float(sizes[tasks[:, 0]].mean()) * len(adjacent) / len(sizes) * shard.n_rows
    share_kernel(search, queue, worth_waking(shard.n_threads, SECONDS_PER_LOOK * pairs))
    return out
