"""Truncated E-steps of k-means: rows look at neighbourhoods, at a cost that does not depend on the number of clusters.

Rows are grouped by their closest cluster (counting sort); groups are searched side by side on our threads. A row keeps
its label, and K(n) too if C′ > 1. Sums are taken in cluster order; the pass can return only what moved, so that settled
rows cost no second read. `expect.neighbors` has the same search for mixtures.
"""

from __future__ import annotations

import threading
from typing import cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.grouped import ROWS_PER_TASK, Grouping, group_rows, move_rows, sort_when_it_pays
from globular.backends.cpu.rows import DenseRows, Floats, load_rows
from globular.backends.cpu.shard import CpuShard
from globular.backends.cpu.sums import cluster_sums, moved_sums
from globular.backends.limits import HASH_SIZE
from globular.kernels import few_columns, neighborhoods
from globular.kernels import neighbors as kernels
from globular.model.graph import Graph
from globular.model.groups import group_by
from globular.model.search import Search
from globular.model.statistics import F64, HardStatistics, PairStatistics
from globular.seam.among import Neighbors
from globular.seam.passes import Assign
from globular.threads import even_ranges, map_all

FEW_COLUMNS = 12
"""Columns up to which the search is vectorised over rows."""


@CpuShard.implements(Assign, Neighbors)
def assign_neighbors(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against the neighbourhoods of its K(n)."""
    assert isinstance(work.among, Neighbors)
    centers, graph, search = work.centers, work.among.graph, work.among.search
    if search.n_candidates == 1:
        objective, n_distances, pairs, moved = _search_neighborhoods(shard, centers, graph, search)
    else:
        former = shard.labels.copy()
        members = kept_members(shard, graph, search.n_candidates)
        n_distances, pairs = search_candidates_of(shard, centers, SquaredDistances(), graph, search, members)
        objective = _settle_hard(shard, centers, members)
        changed = np.flatnonzero(former != shard.labels)
        moved = np.stack([changed, former[changed]]).astype(former.dtype if shard.n_rows < 2**31 else np.int64)
    if work.want == "moves":
        sums, counts = moved_sums(shard, len(centers), moved)
    elif work.want == "sums":
        sums, counts = cluster_sums(shard, len(centers), shard.recall(Grouping) if search.n_candidates == 1 else None)
    else:
        sums, counts = np.empty((0, shard.n_columns)), np.empty(0)
    return HardStatistics(sums, counts, objective, moved.shape[1], n_distances, pairs)


class SquaredDistances:
    """What a search compares: for k-means the squared distance, in the rows' dtype."""

    dtype: np.dtype | None = None
    search_precisions: F64 = np.empty((0, 0))
    search_biases: F64 = np.empty(0)
    by_distance = True


def _search_neighborhoods(
    shard: CpuShard, centers: F64, graph: Graph, search: Search
) -> tuple[float, int, PairStatistics, NDArray[np.integer]]:
    """C′ = 1: tables per group. The closest cluster of every row goes to the labels.

    Returns the objective, the number of distances, what Eq. 8 needs, and the rows that moved with what they left.
    """
    C, D = centers.shape
    G = graph.shape[1]
    grouping = group_rows(shard, C)
    starts = grouping.starts
    dtype = shard.rows.dtype
    quick = centers.astype(dtype)
    few = isinstance(shard.rows, DenseRows) and D <= FEW_COLUMNS
    norms = np.empty(0) if few else np.einsum("ij,ij->i", centers, centers)
    labels, seed = shard.labels, np.uint64(search.seed)

    def of_groups(span: tuple[int, int]) -> tuple[float, int, PairStatistics, NDArray[np.integer]]:
        first, last = span
        begin, end = int(starts[first]), int(starts[last])
        rows, places = grouping.load(shard, begin, end)
        order = grouping.order[begin:end]
        width = (last - first) * G * (G - 1) + (end - begin) * search.n_random if search.estimate else 0
        pairs, sums = np.empty((2, width), dtype=np.int32), np.empty((2, width), dtype=np.float32)
        table, moved = np.empty((G, G + 1)), np.empty((2, end - begin), dtype=order.dtype)
        if few:
            objective, n_distances, n_pairs, n_moved = few_columns.search_few_columns(
                rows, places, order, shard.weights, shard.scales, starts, first, last, graph, quick, centers,
                search.n_random, seed, shard.first_row, labels, moved, pairs, sums,
                few_columns.Batch.make(D, G, dtype), table,
            )  # fmt: skip
        else:
            objective, n_distances, n_pairs, n_moved = neighborhoods.search_neighborhoods(
                rows, places, order, shard.weights, shard.scales, starts, first, last, graph, quick, centers, norms,
                search.n_random, seed, shard.first_row, labels, moved, pairs, sums, np.empty(G, dtype), table,
            )  # fmt: skip
        return objective, n_distances, PairStatistics(pairs[:, :n_pairs], sums[:, :n_pairs]), moved[:, :n_moved]

    found = map_all(of_groups, grouping.tasks(), shard.n_threads)
    objectives, counts, pieces, moves = zip(*found, strict=True)
    moved = np.concatenate(moves, axis=1)
    moved[0] = move_rows(shard, grouping, moved)
    sort_when_it_pays(shard, grouping, moved.shape[1])
    shard.keep(grouping)
    return sum(objectives), sum(counts), PairStatistics.join(list(pieces)), moved


def kept_members(shard: CpuShard, graph: Graph, n_candidates: int) -> NDArray[np.int32]:
    """K(n); where it is new or does not fit the labels, the neighbourhood of the label."""
    members = cast(NDArray[np.int32], shard.state.get("members", np.int32, -1, width=n_candidates))
    stale = members[:, 0] != shard.labels
    if stale.any():
        G = min(n_candidates, graph.shape[1])
        members[stale, :G] = graph[shard.labels[stale], :G]
        members[stale, G:] = -1
    return members


def search_candidates_of(
    shard: CpuShard, centers: F64, costs: SquaredDistances, graph: Graph, search: Search, members: NDArray[np.int32]
) -> tuple[int, PairStatistics]:
    """C′ > 1, or soft: K(n) becomes the best of the union of its members' neighbourhoods."""
    C = len(centers)
    dtype = shard.rows.dtype if costs.dtype is None else costs.dtype
    quick, norms = centers.astype(dtype), np.einsum("ij,ij->i", centers, centers)
    precisions, biases = costs.search_precisions.astype(dtype), costs.search_biases.astype(dtype)
    _, order = group_by(shard.labels, C, shard.n_threads)
    width = members.shape[1] * graph.shape[1] + search.n_random
    held = threading.local()

    def search_span(span: tuple[int, int]) -> tuple[int, list[PairStatistics]]:
        begin, end = span
        scratch = _scratch(held, C, members.shape[1], width, dtype, search.estimate)
        found, n_distances = [], 0
        while begin < end:
            rows, gathered = load_rows(shard.rows, order[begin:end])
            begin, n, n_held = kernels.search_candidates(
                rows, gathered, shard.weights, shard.scales, order, begin, end, graph, quick, norms, precisions, biases,
                search.n_random, np.uint64(search.seed), shard.first_row, members, costs.by_distance,
                scratch.keys, scratch.pair_sums, scratch.stamps, scratch.former, scratch.costs,
                scratch.seen, scratch.seen_costs,
            )  # fmt: skip
            n_distances += n
            if search.estimate:
                pairs, sums = np.empty((2, n_held), dtype=np.int32), np.empty((2, n_held), dtype=np.float32)
                kernels.drain_pairs(C, scratch.keys, scratch.pair_sums, pairs, sums)
                found.append(PairStatistics(pairs, sums))
        return n_distances, found

    spans = map_all(search_span, even_ranges(shard.n_rows, ROWS_PER_TASK), shard.n_threads)
    return sum(n for n, _ in spans), PairStatistics.join([pairs for _, found in spans for pairs in found])


class _Scratch:
    """Working memory of one thread in one pass."""

    def __init__(self, C: int, C_prime: int, width: int, dtype: np.dtype, estimate: bool) -> None:
        size = max(HASH_SIZE, 1 << (4 * width).bit_length()) if estimate else 0
        self.keys = np.full(size, -1, dtype=np.int64)
        self.pair_sums = np.empty((size, 2))
        self.stamps = np.zeros(C, dtype=np.int64)
        self.former = np.empty(C_prime, dtype=np.int32)
        self.costs: Floats = np.empty(C_prime, dtype=dtype)
        self.seen = np.empty(width, dtype=np.int32)
        self.seen_costs: Floats = np.empty(width, dtype=dtype)


def _scratch(held: threading.local, C: int, C_prime: int, width: int, dtype: np.dtype, estimate: bool) -> _Scratch:
    if not hasattr(held, "scratch"):
        held.scratch = _Scratch(C, C_prime, width, dtype, estimate)
    return cast(_Scratch, held.scratch)


def _settle_hard(shard: CpuShard, centers: F64, members: NDArray[np.int32]) -> float:
    norms = np.einsum("ij,ij->i", centers, centers)
    labels = shard.labels

    def settle(span: tuple[int, int]) -> float:
        part = slice(*span)
        return kernels.settle_hard(
            shard.rows.kernel_rows(*span), shard.scales[part], shard.weights[part], centers, norms,
            members[part], labels[part],
        )  # fmt: skip

    return float(sum(map_all(settle, even_ranges(shard.n_rows, ROWS_PER_TASK), shard.n_threads)))
