"""The routed pass: every row down a tree of cells to the closest centre of its own cell.

Rows are grouped by the cell they have reached; a group shares its candidates, so each level is a matrix product per
cell. Products only nominate, as in the hard pass: the child a row goes to is exactly the closest one.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.products import CENTER_CHUNK, CenterProduct, ScoreChunk
from globular.backends.cpu.rows import gather_rows
from globular.backends.cpu.shard import CpuShard
from globular.backends.cpu.sums import former_labels, wanted_sums
from globular.model.cells import CellLevel
from globular.model.groups import group_by
from globular.model.statistics import F64, HardStatistics
from globular.seam.among import Down
from globular.seam.passes import Assign, CellNeighbors, Index, Labels
from globular.threads import even_ranges, map_all, run_all

ROWS_PER_TASK = 2048
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
            n_distances += _descend(shard, level, cells, cells, d2).n_distances
    last = _descend(shard, tree.levels[-1], cells, labels, d2)
    weighted = d2 * shard.weights if len(shard.weights) else d2
    errors = cast(F64, np.bincount(labels, weighted, minlength=len(tree.centers)))
    n_distances += last.n_distances
    return HardStatistics(
        *wanted_sums(shard, work, former), float(errors.sum()), last.n_changed, n_distances, errors=errors
    )


class CellTask(NamedTuple):
    """Some of the rows of one cell: order[begin:end] of rows grouped by cell."""

    cell: int
    begin: int
    end: int


def cell_tasks(starts: NDArray[np.int64]) -> list[CellTask]:
    """All rows, grouped by cell, in tasks of one cell each."""
    return [
        CellTask(cell, int(starts[cell]) + a, int(starts[cell]) + b)
        for cell in range(len(starts) - 1)
        for a, b in even_ranges(int(starts[cell + 1] - starts[cell]), ROWS_PER_TASK)
    ]


class _Descent(NamedTuple):
    n_changed: int
    n_distances: int


def _descend(shard: CpuShard, level: CellLevel, cells: Labels, children: Labels, d2: F64) -> _Descent:
    """Send each row from its cell to the closest child; `children` may be the same array as `cells`."""
    n_cells = len(level.starts) - 1
    bounds, order = group_by(cells, n_cells)
    sizes = np.diff(level.starts)
    members = [
        [np.arange(first + a, first + b) for a, b in even_ranges(size, CENTER_CHUNK)]
        for first, size in zip(level.starts[:-1].tolist(), sizes.tolist(), strict=True)
    ]
    product = CenterProduct(shard, level.centers, [chunk for cell in members for chunk in cell])
    chunk_ends = np.cumsum([0] + [len(cell) for cell in members])
    in_cell = [_only(product, product.chunks[a:b]) for a, b in pairwise(chunk_ends)]

    def assign(task: CellTask) -> int:
        chosen = order[task.begin : task.end]
        rows = gather_rows(shard.rows, chosen)
        scales = shard.scales[chosen] if len(shard.scales) else shard.scales
        best = np.full(len(chosen), np.inf)
        found = np.full(len(chosen), -1, dtype=np.int32)
        local = in_cell[task.cell]
        local.nearest(rows, local.seen(rows), scales, best, found)
        n_changed = int(np.count_nonzero(children[chosen] != found))
        children[chosen] = found
        d2[chosen] = best
        return n_changed

    n_changed = sum(map_all(assign, cell_tasks(bounds), shard.n_threads))
    return _Descent(n_changed, int(np.diff(bounds) @ sizes))


def _only(product: CenterProduct, chunks: list[ScoreChunk]) -> CenterProduct:
    """The same product with some of its centres; threads keep sharing its scratch memory."""
    part = copy.copy(product)
    part.chunks = chunks
    return part


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
