"""The hard pass of sparse rows among sparse centres: closest by an inverted file, sums over the entries that there are.

Rows come in the order of their labels: their centre is written out once for all of them, and they share most columns,
so that what they read stays in the cache. A row whose centre is where the last pass had it can only be closer to one
that has moved: it looks at an inverted file of those alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.jit import Queue, Scratch, Zeros, kernel, new_queue, share_kernel, take_number
from globular.model.sparse_centers import SparseCenters, SparseStatistics
from globular.model.statistics import F64, HardStatistics
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.engine.postings import (
    Looks,
    closest,
    guess,
    new_postings,
    product,
    square,
    wipe_out,
    write_out,
)
from globular.passes.cpu.engine.rows import CANCELLED, row_length
from globular.passes.cpu.rows import CSRRows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import SEARCHED_AT_ONCE
from globular.seam.passes import Labels
from globular.seam.sparse_passes import AssignSparse, LabelSparse
from globular.threads import SECONDS_PER_LOOK, worth_waking

CLUSTERS_AT_ONCE = 16
"""Clusters that a thread adds up before it asks for more; larger = it asks less often."""
BLOCK = 64
"""Columns that are looked through together for sums; larger = fewer blocks, and more zeros in each."""


@kernel
def assign_sparse_rows(
    queue: Queue,  # IN/OUT stretches of `order`
    length: int,  # IN  rows of a stretch
    order: Any,  # IN  (N,) rows by their labels
    rows: Any,  # IN  (data, indices, indptr)
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    postings: Any,  # IN  all centres
    moved: Any,  # IN  those that are not where they were
    same: Any,  # IN  (C,) bool, those that are
    held: Any,  # IN  (N,) labels of the last pass, if that was among as many centres
    center: Zeros,  # scratch (D,), zeros
    gains: Zeros,  # scratch (C,), zeros
    read: Scratch,  # scratch (C + 1,) int32
    labels: Any,  # IN/OUT (N,) −1 where there is none
    d2: Any,  # OUT (N,)
    objectives: Any,  # OUT (stretches,) Σ w d²
    numbers: Any,  # OUT (stretches, 2) labels changed, products
) -> None:
    """Stretches of rows, until none is left. O(products)."""
    looks = Looks(center, gains, read)
    s = take_number(queue)
    while s < objectives.shape[0]:
        written, objective, n_changed, n_products = -1, 0.0, 0, 0
        for at in range(s * length, min((s + 1) * length, order.shape[0])):
            i = order[at]
            scale = scales[i] if scales.shape[0] else 1.0
            own, its_product = int(labels[i]), 0.0
            if own < 0:
                own = guess(rows, i, scale, postings)
                its_product = product(rows, i, scale, postings, own)
            else:
                if own != written:
                    if written >= 0:
                        wipe_out(postings, written, looks)
                    write_out(postings, own, looks)
                    written = own
                for k in range(rows[2][i], rows[2][i + 1]):
                    its_product += scale * rows[0][k] * looks.center[rows[1][k]]
            size = scale * row_length(rows, i)
            if same[own] and held[i] == own:
                c, score, n = closest(rows, i, scale, own, its_product, size, moved, looks)
            else:
                c, score, n = closest(rows, i, scale, own, its_product, size, postings, looks)
            d2[i] = size * size + score
            if d2[i] < CANCELLED * (size * size + postings.norms[c]):
                d2[i] = square(rows, i, scale, postings, c)
            objective += d2[i] * (weights[i] if weights.shape[0] else 1.0)
            n_changed += labels[i] != c
            labels[i] = c
            n_products += n + rows[2][i + 1] - rows[2][i]
        if written >= 0:
            wipe_out(postings, written, looks)
        objectives[s], numbers[s, 0], numbers[s, 1] = objective, n_changed, n_products
        s = take_number(queue)


class Closest(NamedTuple):
    """What a pass leaves to the next: its centres, and the closest of them to every row."""

    centers: SparseCenters
    held: Labels


def label_sparse_rows(shard: CpuShard, centers: SparseCenters, d2: F64) -> tuple[float, int, int]:
    """Label all rows, and set their squared distances: the objective, labels changed and distances looked at."""
    assert isinstance(shard.rows, CSRRows)
    (C, D), rows, labels = centers.shape, shard.rows, shard.labels
    labels[labels >= C] = -1  # of another number of centres
    _, order = group_by(labels + 1, C + 1, shard.n_threads)
    before = shard.recall(Closest)
    same = np.zeros(C, dtype=np.bool_)
    if before is not None and before.centers.shape == centers.shape:
        same = centers.is_same(before.centers)
    held = np.full(shard.n_rows, -1, dtype=np.int32) if before is None else before.held
    shard.forget(Closest)
    del before  # its centres may be as large as the rows
    postings, moved = new_postings(centers, same, shard.n_threads)
    n_stretches = -(-shard.n_rows // SEARCHED_AT_ONCE)
    objectives, numbers = np.empty(n_stretches), np.empty((n_stretches, 2), dtype=np.int64)
    queue = new_queue()

    def assign() -> None:
        assign_sparse_rows(
            queue, SEARCHED_AT_ONCE, order, rows.kernel_rows(0, shard.n_rows), shard.scales, shard.weights, postings,
            moved, same, held, np.zeros(D), np.zeros(C), np.empty(C + 1, dtype=np.int32), labels, d2, objectives,
            numbers,
        )  # fmt: skip

    share_kernel(assign, queue, min(shard.n_threads, n_stretches), calls_blas=False)
    shard.keep(Closest(centers, labels.copy()))
    n_changed, n_products = numbers.sum(axis=0).tolist()
    return float(objectives.sum()), n_changed, -(-n_products * shard.n_rows // max(1, len(rows.data)))


@kernel
def add_members(
    queue: Queue,  # IN/OUT stretches of clusters
    length: int,  # IN  clusters of a stretch
    first: Any,  # IN  (C + 1,) where the rows of each cluster begin
    order: Any,  # IN  (N,) rows by their labels
    rows: Any,  # IN  (data, indices, indptr)
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    width: int,  # IN  columns of a block
    sums: Zeros,  # scratch (D,), zeros
    marks: Zeros,  # scratch (blocks of columns,) bool, zeros: has a block sums?
    starts: Any,  # IN  (C + 1,) where the entries of each cluster go; OUT their number, where there is no room yet
    columns: Any,  # OUT (n,) ascending for each cluster, or empty: no room
    values: Any,  # OUT (n,) Σ w x
) -> None:
    """Σ w x of each cluster, but zeros: how many there are, or which. O(entries + C · blocks)."""
    data, indices, indptr = rows
    D, C, s = sums.shape[0], first.shape[0] - 1, take_number(queue)
    while s * length < C:
        for c in range(s * length, min((s + 1) * length, C)):
            for at in range(first[c], first[c + 1]):
                i, factor = order[at], 1.0
                if weights.shape[0]:
                    factor *= weights[i]
                if scales.shape[0]:
                    factor *= scales[i]
                for q in range(indptr[i], indptr[i + 1]):
                    sums[indices[q]] += factor * data[q]
                    marks[indices[q] // width] = True
            n = starts[c] if columns.shape[0] else 0
            for block in range(marks.shape[0]):
                if marks[block]:
                    marks[block] = False
                    for j in range(block * width, min((block + 1) * width, D)):
                        if sums[j] != 0.0:
                            if columns.shape[0]:
                                columns[n], values[n] = j, sums[j]
                            n += 1
                            sums[j] = 0.0
            if columns.shape[0] == 0:
                starts[c + 1] = n
        s = take_number(queue)


def sparse_sums(shard: CpuShard, C: int) -> SparseCenters:
    """Σ w x per label: counted first, then written where there is room for just as many."""
    rows, D = shard.rows, shard.n_columns
    assert isinstance(rows, CSRRows)
    first, order = group_by(shard.labels, C, shard.n_threads)
    starts, columns, values = np.zeros(C + 1, dtype=np.int64), np.empty(0, dtype=np.int32), np.empty(0)

    def add(queue: NDArray[np.int64]) -> None:
        add_members(
            queue, CLUSTERS_AT_ONCE, first, order, rows.kernel_rows(0, shard.n_rows), shard.scales, shard.weights,
            BLOCK, np.zeros(D), np.zeros(-(-D // BLOCK), dtype=np.bool_), starts, columns, values,
        )  # fmt: skip

    n_threads = min(worth_waking(shard.n_threads, SECONDS_PER_LOOK * len(rows.data)), -(-C // CLUSTERS_AT_ONCE))
    share_kernel(partial(add, queue := new_queue()), queue, n_threads, calls_blas=False)
    starts = starts.cumsum()
    columns, values = np.empty(starts[-1], dtype=np.int32), np.empty(starts[-1])
    if starts[-1]:
        share_kernel(partial(add, queue := new_queue()), queue, n_threads, calls_blas=False)
    return SparseCenters(sparse.csr_array((values, columns, starts), shape=(C, D)))


def taken(shard: CpuShard, indices: NDArray[np.integer]) -> SparseCenters:
    """Some rows, as centres."""
    assert isinstance(shard.rows, CSRRows)
    found = shard.rows.block(0, shard.n_rows)[indices].astype(np.float64)
    if len(shard.scales):
        found.data *= np.repeat(shard.scales[indices], np.diff(found.indptr))
    return SparseCenters(found)


def _far_rows(shard: CpuShard, centers: SparseCenters, n: int) -> SparseCenters:
    """Up to n different rows, the farthest from their centres first."""
    if n == 0:
        return SparseCenters.of(np.empty((0, shard.n_columns)))
    rows, d2 = shard.rows, shard.squared_distances
    assert isinstance(rows, CSRRows)
    for each in (shard.weights, shard.scales):  # a row of zeros has no direction
        if len(each):
            d2 = np.where(each > 0, d2, 0.0)
    rounding = 1e-28 * centers.norms  # rows that are no farther lie at their centre
    m = min(4 * n + 16, shard.n_rows)  # rows may be alike: the next iteration finds what these miss
    some = np.argpartition(-d2, m - 1)[:m]
    found: dict[bytes, int] = {}
    for i in some[np.lexsort((some, -d2[some]))].tolist():
        if d2[i] > rounding[shard.labels[i]]:
            entries = slice(rows.indptr[i], rows.indptr[i + 1])
            found.setdefault(rows.indices[entries].tobytes() + rows.data[entries].tobytes(), i)
    return taken(shard, np.array(list(found.values())[:n], dtype=np.intp))


@CpuShard.implements(LabelSparse)
def label_sparse(shard: CpuShard, work: LabelSparse) -> HardStatistics:
    found = label_sparse_rows(shard, work.centers, np.empty(shard.n_rows))
    return HardStatistics(np.empty((0, shard.n_columns)), np.empty(0), *found)


@CpuShard.implements(AssignSparse)
def assign_sparse(shard: CpuShard, work: AssignSparse) -> SparseStatistics:
    objective, n_changed, n_distances = label_sparse_rows(shard, work.centers, shard.squared_distances)
    C = work.centers.shape[0]
    counts = np.bincount(shard.labels, shard.weights if len(shard.weights) else None, minlength=C).astype(np.float64)
    n_empty = int(np.count_nonzero(counts <= 0))
    far = _far_rows(shard, work.centers, n_empty)
    return SparseStatistics(sparse_sums(shard, C), counts, objective, n_changed, n_distances, far)
