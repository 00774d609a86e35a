"""The truncated passes: E-steps over neighbourhoods, at a cost that does not depend on the number of clusters.

Rows are grouped by their closest cluster (counting sort); groups are searched side by side on our threads. The hard
pass (k-means) keeps a label a row, and K(n) too if C′ > 1; the soft pass (mixtures) keeps K(n). Sums are taken in
cluster order; the hard pass can return only what moved, so that settled rows cost no second read.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.grouped import (
    ROWS_PER_TASK,
    TASKS,
    cut_groups,
    group_rows,
    move_rows,
    sort_when_it_pays,
)
from globular.backends.cpu.hard import cluster_sums
from globular.backends.cpu.rows import DenseRows, Floats, load_rows
from globular.kernels import few_columns, neighborhoods
from globular.kernels import truncated as kernels
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph
from globular.model.groups import group_by, order_by
from globular.model.search import Search
from globular.model.statistics import F64, HardStatistics, PairStatistics, SoftStatistics, TruncatedStatistics
from globular.threads import even_ranges, map_all, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

FEW_COLUMNS = 12
"""Up to so many columns the search is vectorised over rows."""
HASH_SIZE = 1 << 15


def truncated_pass(
    shard: CpuShard, centers: F64, graph: Graph, search: Search, moved_only: bool
) -> TruncatedStatistics[HardStatistics]:
    """See `Shard.truncated_pass`."""
    if search.n_candidates == 1:
        objective, n_distances, pairs, moved = _search_neighborhoods(shard, centers, graph, search)
    else:
        former = shard.labels.copy()
        members = kept_members(shard, graph, search.n_candidates)
        n_distances, pairs = _search_candidates(shard, centers, _NO_MIXTURE, graph, search, members)
        objective = _settle_hard(shard, centers, members)
        changed = np.flatnonzero(former != shard.labels)
        moved = np.stack([changed, former[changed]]).astype(former.dtype if shard.n_rows < 2**31 else np.int64)
    if moved_only:
        sums, counts = _moved_sums(shard, len(centers), moved)
    else:
        sums, counts = cluster_sums(shard, len(centers), shard.grouping if search.n_candidates == 1 else None)
    return TruncatedStatistics(HardStatistics(sums, counts, objective, moved.shape[1], n_distances), pairs)


def truncated_soft_pass(
    shard: CpuShard, mixture: GaussianParameters, graph: Graph, search: Search
) -> TruncatedStatistics[SoftStatistics]:
    """See `Shard.truncated_soft_pass`."""
    members = kept_members(shard, graph, search.n_candidates)
    costs = Costs(mixture)
    n_distances, pairs = _search_candidates(shard, mixture.means, costs, graph, search, members)
    shard.labels[:] = members[:, 0]
    shares, bounds = _settle_soft(shard, mixture, costs, members, shard.weights)
    bound = float(shard.weights @ bounds if len(shard.weights) else bounds.sum())
    counts, sums, scatter = soft_sums(shard, mixture, members, shares)
    statistics = SoftStatistics(counts, sums, scatter, bound, shard.total_weight, n_distances)
    return TruncatedStatistics(statistics, pairs)


@dataclass(frozen=True, slots=True)
class TruncatedPosterior:
    """What is known of every row from its K(n) alone."""

    members: NDArray[np.int32]
    """K(n), the most likely component first, (N, C′); −1 where there is none."""
    probabilities: F64
    """The posterior renormalised over K(n), Eq. 5, (N, C′); 0 where there is no member."""
    log_densities: F64
    """log Σ_{c∈K(n)} p(c, x) ≤ log p(x), (N,)."""


def truncated_posterior(shard: CpuShard, mixture: GaussianParameters, n_candidates: int) -> TruncatedPosterior:
    """Of the K(n) that the last truncated soft pass has left. O(N · C′ · D)."""
    members = cast(NDArray[np.int32], shard.state.get("members", np.int32, -1, width=n_candidates))
    probabilities, log_densities = _settle_soft(shard, mixture, Costs(mixture), members, np.empty(0))
    return TruncatedPosterior(members, probabilities, log_densities)


def _settle_soft(
    shard: CpuShard, mixture: GaussianParameters, costs: Costs, members: NDArray[np.int32], weights: F64
) -> tuple[F64, F64]:
    """w q(c) of the members, (N, C′), and the terms of Eq. 10, (N,)."""
    shares, bounds = np.empty(members.shape), np.empty(len(members))

    def settle(span: tuple[int, int]) -> None:
        part = slice(*span)
        kernels.settle_soft(
            shard.rows.kernel_rows(*span), weights[part], mixture.means, costs.precisions, costs.biases,
            members[part], shares[part], bounds[part],
        )  # fmt: skip

    run_all(settle, even_ranges(shard.n_rows, ROWS_PER_TASK), shard.n_threads)
    return shares, bounds


class Costs:
    """−2 log p(c, x) = Σ_j precision_cj (x_j − μ_cj)² + bias_c for the families with diagonal covariances.

    The search may compare something simpler that sorts alike: with one variance for all, −2σ² log p(c, x) without its
    constants, which for equal weights is the squared distance. −2 log p(c, x) = unit · (what is compared) + base.
    """

    dtype: np.dtype | None = np.dtype(np.float64)
    """K(n) is chosen in float64 whatever the rows are: in float32 rounding could lower the free energy."""

    def __init__(self, mixture: GaussianParameters) -> None:
        C, D = mixture.means.shape
        variances = mixture.variances()
        self.precisions: F64 = np.ascontiguousarray(1.0 / variances)
        log_determinants = np.log(variances).sum(axis=1) * (D if variances.shape[1] == 1 else 1)
        with np.errstate(divide="ignore"):
            log_weights = np.log(mixture.weights)
        self.biases: F64 = log_determinants + D * np.log(2 * np.pi) - 2.0 * log_weights
        self.by_distance = mixture.family.euclidean
        self.search_precisions, self.search_biases = self.precisions, self.biases
        self.unit, self.base = 1.0, 0.0
        if self.by_distance:
            self.search_precisions = np.ones((C, 1))
            self.search_biases = 2.0 * variances[:, 0] * (log_weights.max() - log_weights)
            self.unit, self.base = float(self.precisions[0, 0]), float(self.biases.min())


class _NoMixture:
    """K-means: the cost is the squared distance, in the rows' dtype."""

    dtype: np.dtype | None = None
    search_precisions: F64 = np.empty((0, 0))
    search_biases: F64 = np.empty(0)
    by_distance = True


_NO_MIXTURE = _NoMixture()


def _rows_per_task(n_rows: int) -> int:
    """About a hundred tasks: fewer would not balance, more would cost more to hand out. Threads play no part."""
    return min(1 << 16, max(ROWS_PER_TASK, n_rows // 100))


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
    shard.grouping = grouping
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


def _search_candidates(
    shard: CpuShard, centers: F64, costs: Costs | _NoMixture, graph: Graph, search: Search, members: NDArray[np.int32]
) -> tuple[int, PairStatistics]:
    """C′ > 1, or soft: K(n) becomes the best of the union of its members' neighbourhoods."""
    C = len(centers)
    dtype = shard.rows.dtype if costs.dtype is None else costs.dtype
    quick, norms = centers.astype(dtype), np.einsum("ij,ij->i", centers, centers)
    precisions, biases = costs.search_precisions.astype(dtype), costs.search_biases.astype(dtype)
    _, order = group_by(shard.labels, C)
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


def _moved_sums(shard: CpuShard, n_clusters: int, moved: NDArray[np.integer]) -> tuple[F64, F64]:
    """What the moved rows (and what they have left) add to their new clusters and take from their old ones."""
    numbers, old = moved
    sums, counts = np.zeros((n_clusters, shard.n_columns)), np.zeros(n_clusters)
    origin = np.zeros(shard.n_columns)
    sides = []
    for labels, sign in ((shard.labels[numbers], 1.0), (old, -1.0)):
        order = order_by(labels, n_clusters)
        sides.append((labels[order], numbers[order], sign))

    def add(clusters: tuple[int, int]) -> None:
        for labels, numbers, sign in sides:
            part = slice(*np.searchsorted(labels, clusters))
            rows, gathered = load_rows(shard.rows, numbers[part])
            kernels.sum_moved(
                rows, gathered, shard.weights, shard.scales, origin, labels[part], numbers[part], sign, sums, counts
            )

    n_tasks = min(TASKS, 1 + len(numbers) // ROWS_PER_TASK)
    run_all(add, even_ranges(n_clusters, -(-n_clusters // n_tasks)), shard.n_threads)
    return sums, counts


def soft_sums(
    shard: CpuShard, mixture: GaussianParameters, members: NDArray[np.int32], shares: F64
) -> tuple[F64, F64, F64]:
    """Counts, sums and scatter of the truncated M-step: the entries of K(n) sorted by cluster."""
    means = mixture.means
    C, D = means.shape
    C_prime = members.shape[1]
    clusters = np.where(members < 0, C, members).ravel()  # entries without a cluster go behind the last
    starts, order = group_by(clusters, C + 1)
    counts, sums, scatter = np.zeros(C), np.zeros((C, D)), np.zeros(mixture.family.scatter.shape(C, D))
    flat = shares.ravel()

    def add(span: tuple[int, int]) -> None:
        first, last = span
        entries = order[starts[first] : starts[last]]
        rows, gathered = load_rows(shard.rows, entries // C_prime)
        kernels.sum_shares(rows, gathered, flat, C_prime, order, starts, first, last, means, counts, sums, scatter)

    run_all(add, cut_groups(starts[:-1], _rows_per_task(len(order))), shard.n_threads)
    return counts, sums, scatter
