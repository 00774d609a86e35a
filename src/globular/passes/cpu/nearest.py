"""The n closest centres of every row, and its distance from its own: N n numbers are kept, and never N k.

Scores nominate, as for the one closest centre (`engine.decide`): a centre is measured in the exact
difference form in float64 unless its score rules it out beside the n closest so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, kernel, take_number
from globular.jit.memory import as_matrix
from globular.model.statistics import F64, FarRows
from globular.passes.cpu.cells import BLOCK_ROWS, CellProduct
from globular.passes.cpu.engine.decide import highest_score, insert
from globular.passes.cpu.engine.rows import squared_distance
from globular.passes.cpu.engine.score import rows_for_table, score_block
from globular.passes.cpu.rows import KernelRows, on_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import ROWS_AT_ONCE
from globular.seam.answers import NEAREST, Answer, Nearest, Own
from globular.seam.passes import Farthest


@kernel
def own_distances(
    queue: Queue,  # IN/OUT blocks
    size: int,  # IN  rows of a block
    rows: Any,  # IN
    scales: Any,  # IN  (n,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) float64
    labels: Any,  # IN  (n,)
    out: Any,  # OUT (n,) ‖x − m_label‖²
) -> None:
    """Squared distance of every row to the centre of its label. O(n · D)."""
    begin = size * take_number(queue)
    while begin < labels.shape[0]:
        for i in range(begin, min(begin + size, labels.shape[0])):
            scale = scales[i] if scales.shape[0] else 1.0
            out[i] = squared_distance(rows, i, scale, centers, labels[i], norms)
        begin = size * take_number(queue)


@kernel
def nearest_centers(
    queue: Queue,  # IN/OUT tasks
    visit: Any,  # IN  all rows, in turn
    nominees: Any,  # IN  in one cell
    squares: Any,  # OUT (N, n) the n lowest squared distances, ascending
    found: Any,  # OUT (N, n) whose they are, of those equally far the first
    block: Scratch,  # scratch
) -> None:
    """Each row against all centres. O(N · C · D), and O(N · n) for every centre that comes closer than those before."""
    stop, last = nominees.starts[1], found.shape[1] - 1
    B, given = rows_for_table(block, stop), visit.given
    t = take_number(queue)
    while t < visit.tasks.shape[0]:
        for begin in range(visit.tasks[t, 1], visit.tasks[t, 2], B):
            end = min(begin + B, visit.tasks[t, 2])
            some = visit.places[begin:end]
            score_block(visit.rows, some, some, given, nominees, 0, stop, block)
            scores = as_matrix(block.table, end - begin, stop)
            for i in range(begin, end):
                row, scale = visit.places[i], given.scales[i] if given.scales.shape[0] else 1.0
                n_kept, limit = 0, np.inf
                for c in range(nominees.ends[0]):
                    if scores[i - begin, c] > limit:
                        continue
                    squared = squared_distance(visit.rows, row, scale, nominees.centers, c, nominees.norms)
                    n_kept = insert(squared, c, squares[i], found[i], n_kept)
                    if n_kept > last:
                        limit = highest_score(block.squares[i - begin], squares[i, last], nominees.bounds)
        t = take_number(queue)


@kernel
def nearest_in_graph(
    queue: Queue,  # IN/OUT blocks
    size: int,  # IN  rows of a block
    rows: Any,  # IN
    scales: Any,  # IN  (n,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) float64
    graph: Any,  # IN  (C, G)
    labels: Any,  # IN  (n,)
    squares: Any,  # OUT (n, m) the m lowest squared distances, ascending
    found: Any,  # OUT (n, m) whose they are
) -> None:
    """Each row against the centres that the graph names at its label. O(n · G · D)."""
    begin = size * take_number(queue)
    while begin < labels.shape[0]:
        for i in range(begin, min(begin + size, labels.shape[0])):
            scale, n_kept = scales[i] if scales.shape[0] else 1.0, 0
            for g in range(graph.shape[1]):
                c = graph[labels[i], g]
                squared = squared_distance(rows, i, scale, centers, c, norms)
                n_kept = insert(squared, c, squares[i], found[i], n_kept)
        begin = size * take_number(queue)


@CpuShard.implements(Answer, Nearest)
def nearest(shard: CpuShard, work: Answer) -> list[Any]:
    """The closest centres of all rows in ascending order, (N, n); of those equally far the first comes first."""
    found = np.empty((shard.n_rows, work.model.n), dtype=NEAREST)
    squares, numbers = np.empty(found.shape), np.empty(found.shape, dtype=np.int32)
    graph, centers, labels = work.model.graph, np.ascontiguousarray(work.model.centers, dtype=np.float64), shard.labels
    norms: F64 = np.einsum("ij,ij->i", centers, centers)
    product = CellProduct(shard, centers) if graph is None else None

    def find(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        if product is None:
            nearest_in_graph(
                queue, ROWS_AT_ONCE, rows, shard.scales[part], centers, norms, graph, labels[part], squares[part],
                numbers[part],
            )  # fmt: skip
            return
        visit = product.visit(rows, part, BLOCK_ROWS[1])
        nearest_centers(queue, visit, product.nominees, squares[part], numbers[part], product.block(table=True))

    on_rows(shard.rows, shard.n_threads, find)
    found["square"], found["center"] = squares, numbers
    return [found]


@CpuShard.implements(Answer, Own)
def squares(shard: CpuShard, work: Answer) -> list[Any]:
    """Squared distances of all rows to their own centres, (N,)."""
    return [own_squares(shard, work.model.centers)]


@CpuShard.implements(Farthest)
def farthest(shard: CpuShard, work: Farthest) -> FarRows:
    distances = own_squares(shard, work.centers)
    if len(shard.weights):
        distances[shard.weights == 0] = -1.0
    n, some = min(work.n, shard.n_rows), np.arange(shard.n_rows)
    if 0 < n < shard.n_rows:
        some = np.flatnonzero(distances >= np.partition(distances, -n)[-n])
    best = some[np.argsort(-distances[some], kind="stable")[:n]]
    best = best[distances[best] >= 0]
    weights, labels = shard.take(best, "weights"), shard.labels[best].astype(np.int64)
    return FarRows(shard.take(best), distances[best], weights, labels)


def own_squares(shard: CpuShard, centers: F64) -> F64:
    """‖x − m‖² of all rows and the centres of their labels, by differences, (N,)."""
    centers, found, labels = np.ascontiguousarray(centers, dtype=np.float64), np.empty(shard.n_rows), shard.labels
    norms: F64 = np.einsum("ij,ij->i", centers, centers)

    def measure(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        own_distances(queue, ROWS_AT_ONCE, rows, shard.scales[part], centers, norms, labels[part], found[part])

    on_rows(shard.rows, shard.n_threads, measure, calls_blas=False)
    return found
