"""Truncated E-steps of mixtures with diagonal covariances: K(n) among the neighbourhoods of its components.

Here is also what truncated E-steps share, wherever their candidates come from: what K(n) costs, the responsibilities
that follow, and the sums of the M-step. A cost is −2 log p(c, x), up to what all components share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, inline, kernel, new_queue, share_kernel, take_number
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics
from globular.passes.cpu.assign.neighbors import SquaredDistances, kept_members, search_candidates_of
from globular.passes.cpu.engine.decide import insert
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.grouped import ROWS_PER_TASK, cut_groups
from globular.passes.cpu.rows import KernelRows, Rows, can_be_indexed, gather_rows, on_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import NO_TABLE, RUN, on_runs, runs_of
from globular.seam.among import Neighbors
from globular.seam.mixture_passes import Expect
from globular.threads import SECONDS_PER_NUMBER, run_all, worth_waking

Members = NDArray[np.int32]


class Weighed(NamedTuple):
    """What costs are made of: Σ_j precision_cj (x_j − μ_cj)² + bias_c, or with a whole matrix for each component."""

    means: F64
    """(C, D)."""
    precisions: F64
    """(C, 1), (C, D) or (C, D (D + 1) / 2), packed."""
    biases: F64
    """(C,)."""


class Grouped(NamedTuple):
    """Pairs (row, component), numbers n · width + a for the a-th component that row n looks at, by component."""

    order: NDArray[np.integer]
    """(P,)."""
    starts: NDArray[np.int64]
    """Component c has the pairs order[starts[c]] … order[starts[c + 1] − 1]."""
    width: int


class Sums(NamedTuple):
    """Statistics of a truncated M-step, about the old means."""

    counts: F64
    """Σ w q, (C,)."""
    firsts: F64
    """Σ w q (x − μ), (C, D)."""
    scatter: F64
    """Σ w q of the packed second moment, (C, S)."""


@inline
def exact_cost(x: Any, r: int, weighed: Any, c: int, bias: float) -> float:
    """(x − μ)ᵀ Σ⁻¹ (x − μ) + bias in float64: what a component costs a row. O(S)."""
    means, precisions, total = weighed.means, weighed.precisions, 0.0
    if precisions.shape[1] == 1:
        for j in range(x.shape[1]):
            difference = x[r, j] - means[c, j]
            total += difference * difference
        return total * precisions[c, 0] + bias
    if precisions.shape[1] == x.shape[1]:
        for j in range(x.shape[1]):
            difference = x[r, j] - means[c, j]
            total += difference * difference * precisions[c, j]
        return total + bias
    place = 0
    for j in range(x.shape[1]):
        left = x[r, j] - means[c, j]
        for e in range(j, x.shape[1]):
            total += precisions[c, place] * left * (x[r, e] - means[c, e])
            place += 1
    return total + bias


@inline
def chunk_cost(means: Any, spread: Any, i: int, weighed: Any, c: int) -> float:
    """What a component costs a chunk, which is spread about its mean. O(S)."""
    total = exact_cost(means, i, weighed, c, 0.0)
    for s in range(spread.shape[1]):
        total += weighed.precisions[c, s] * spread[i, s]
    return total + weighed.biases[c]


@kernel
def own_costs(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    rows: Any,  # IN  (array,)
    spread: Any,  # IN  (N, S) of chunks, scatter / weight; (0, 0) of rows
    weighed: Any,  # IN
    members: Any,  # IN/OUT (N, C′) K(n); −1 where there is none
    costs: Any,  # OUT (N, C′); inf where there is no member
    sort: bool,  # IN  whether members go in the order of their costs
    n_costs: Any,  # OUT (runs,) components looked at
) -> None:
    """What K(n) costs at these parameters. O(N · C′ · D)."""
    run = take_number(queue)
    while run < n_costs.shape[0]:
        n_costs[run] = 0
        for i in range(run * length, min((run + 1) * length, members.shape[0])):
            for a in range(members.shape[1]):
                c = members[i, a]
                costs[i, a] = np.inf
                if c < 0:
                    continue
                if spread.shape[0]:
                    cost = chunk_cost(rows[0], spread, i, weighed, c)
                else:
                    cost = exact_cost(rows[0], i, weighed, c, weighed.biases[c])
                if sort:
                    insert(cost, c, costs[i], members[i], a)
                else:
                    costs[i, a] = cost
                n_costs[run] += 1
        run = take_number(queue)


@kernel
def shares_of_costs(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    costs: Any,  # IN  (N, W), inf where there is none; OUT w q(c): Eq. 5, the posterior renormalised over them
    unit: float,  # IN  −2 log p(c, x) = unit · cost + base
    base: float,  # IN
    weights: Any,  # IN  (N,) or empty
    densities: Any,  # OUT (N,) log Σ p(c, x), the terms of Eq. 10
    totals: Any,  # OUT (runs,) their sums, by weight
) -> None:
    """Responsibilities in the place of costs. O(N · W)."""
    run = take_number(queue)
    while run < totals.shape[0]:
        totals[run] = 0.0
        for i in range(run * length, min((run + 1) * length, costs.shape[0])):
            lowest, norm = np.inf, 0.0
            for a in range(costs.shape[1]):
                lowest = min(lowest, costs[i, a])
            for a in range(costs.shape[1]):
                costs[i, a] = np.exp(-0.5 * unit * (costs[i, a] - lowest))
                norm += costs[i, a]
            weight = weights[i] if weights.shape[0] else 1.0
            for a in range(costs.shape[1]):
                costs[i, a] *= weight / norm
            densities[i] = np.log(norm) - 0.5 * (unit * lowest + base)
            totals[run] += weight * densities[i]
        run = take_number(queue)


@kernel
def sum_shares(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T + 1,) task t has the components tasks[t] … tasks[t + 1] − 1
    rows: Any,  # IN  (array,): all rows, or (gathered) those of the pairs of the only task
    gathered: bool,  # IN
    spread: Any,  # IN  (≤ N, S) of chunks, scatter / weight; the rows behind them have none
    shares: Any,  # IN  (N·C′,) w q(c)
    grouped: Any,  # IN  a `Grouped`
    centers: Any,  # IN  (C, D) float64
    total: Any,  # OUT a `Sums`
) -> None:
    """Sums of the pairs of each component. O(pairs · S)."""
    x, (order, starts, C_prime), (counts, sums, scatter) = rows[0], grouped, total
    D, S = centers.shape[1], scatter.shape[1]
    isotropic = S == 1
    task = take_number(queue)
    while task < tasks.shape[0] - 1:
        base = starts[tasks[task]]
        for c in range(tasks[task], tasks[task + 1]):
            for k in range(starts[c], starts[c + 1]):
                share = shares[order[k]]
                if share <= 0:
                    continue
                r = k - base if gathered else order[k] // C_prime
                counts[c] += share
                total, place = 0.0, 0
                if S > D:
                    for j in range(D):
                        difference = x[r, j] - centers[c, j]
                        sums[c, j] += share * difference
                        for e in range(j, D):
                            scatter[c, place] += share * difference * (x[r, e] - centers[c, e])
                            place += 1
                else:
                    for j in range(D):
                        difference = x[r, j] - centers[c, j]
                        sums[c, j] += share * difference
                        if isotropic:
                            total += difference * difference
                        else:
                            scatter[c, j] += share * difference * difference
                    if isotropic:
                        scatter[c, 0] += share * total
                if r < spread.shape[0]:
                    for s in range(S):
                        scatter[c, s] += share * spread[r, s]
        task = take_number(queue)


@kernel
def clusters_of_entries(
    queue: Queue,  # IN/OUT stretches
    length: int,  # IN  entries of a stretch
    members: Any,  # IN  (N·C′,)
    n_clusters: int,  # IN
    clusters: Any,  # OUT (N·C′,) the same, or `n_clusters` where there is none
) -> None:
    """Entries without a cluster go behind the last one. O(N · C′)."""
    begin = length * take_number(queue)
    while begin < members.shape[0]:
        for e in range(begin, min(begin + length, members.shape[0])):
            clusters[e] = members[e] if members[e] >= 0 else n_clusters
        begin = length * take_number(queue)


# --- drivers ---------------------------------------------------------------------------------------------------------


@CpuShard.implements(Expect, Neighbors)
def expect_neighbors(shard: CpuShard, work: Expect) -> SoftStatistics:
    """Truncated E-step of a mixture with diagonal covariances among the neighbourhoods of K(n)."""
    assert isinstance(work.among, Neighbors)
    mixture, graph, search = work.mixture, work.among.graph, work.among.search
    members = kept_members(shard, graph, search.n_candidates)
    costs = Costs(mixture)
    n_distances, pairs = search_candidates_of(shard, mixture.means, costs, graph, search, members)
    shard.labels[:] = members[:, 0]
    shares, _ = costs_of(shard.rows, costs.exact, members, shard.n_threads)
    _, bound = share_out(shares, shard.weights, shard.n_threads)
    sums = soft_sums(shard.rows, mixture, members, shares, shard.n_threads)
    return SoftStatistics(*sums, bound, shard.total_weight, n_distances, pairs)


def costs_of(
    rows: Rows, weighed: Weighed, members: Members, n_threads: int, spread: F64 = NO_TABLE, *, sort: bool = False
) -> tuple[F64, int]:
    """The costs of K(n), (N, C′), and their number; with `sort` K(n) is sorted by them. Chunks come with `spread`."""
    costs, n_costs = np.empty(members.shape), np.empty(-(-len(members) // RUN), dtype=np.int64)

    def measure(queue: NDArray[np.int64], some: KernelRows, part: slice) -> None:
        own_costs(queue, RUN, some, spread, weighed, members[part], costs[part], sort, n_costs[runs_of(part)])

    n_threads = worth_waking(n_threads, SECONDS_PER_NUMBER * members.size * rows.shape[1])
    on_rows(rows, n_threads, measure, calls_blas=False)
    return costs, int(n_costs.sum())


def share_out(costs: F64, weights: F64, n_threads: int, unit: float = 1.0, base: float = 0.0) -> tuple[F64, float]:
    """Costs become w q(c); returns log-densities and their sum by weight."""
    densities, totals = np.empty(len(costs)), np.empty(-(-len(costs) // RUN))
    # an exponential takes as long as to read eight numbers
    n_threads = worth_waking(n_threads, 8 * SECONDS_PER_NUMBER * costs.size)
    on_runs(n_threads, shares_of_costs, costs, unit, base, weights, densities, totals)
    return densities, float(totals.sum())


class Costs(SquaredDistances):
    """−2 log p(c, x) = Σ_j precision_cj (x_j − μ_cj)² + bias_c for the families with diagonal covariances.

    The search may compare something simpler that sorts alike: with one variance for all, −2σ² log p(c, x) without its
    constants, which for equal weights is the squared distance. −2 log p(c, x) = unit · (what is compared) + base.
    """

    dtype: np.dtype | None = np.dtype(np.float64)
    """K(n) is chosen in float64 whatever the rows are: in float32 rounding could lower the free energy."""

    def __init__(self, mixture: GaussianParameters) -> None:
        C, D = mixture.means.shape
        variances = mixture.variances()
        precisions: F64 = np.ascontiguousarray(1.0 / variances)
        log_determinants = np.log(variances).sum(axis=1) * (D if variances.shape[1] == 1 else 1)
        log_weights = mixture.log_shares
        biases: F64 = log_determinants + D * np.log(2 * np.pi) - 2.0 * log_weights
        self.by_distance = mixture.family.euclidean
        self.unit, self.base = 1.0, 0.0
        self.exact = self.search = Weighed(np.ascontiguousarray(mixture.means), precisions, biases)
        if self.by_distance:
            simpler = 2.0 * variances[:, 0] * (log_weights.max() - log_weights)
            self.search = self.exact._replace(precisions=np.ones((C, 1)), biases=simpler)
            self.unit, self.base = float(precisions[0, 0]), float(biases.min())
        _, self.search_precisions, self.search_biases = self.search


def soft_sums(
    rows: Rows, mixture: GaussianParameters, members: Members, shares: F64, n_threads: int, spread: F64 = NO_TABLE
) -> tuple[F64, F64, F64]:
    """Counts, sums and scatter of the truncated M-step: the entries of K(n) sorted by cluster."""
    (C, D), kind = mixture.means.shape, mixture.family.scatter
    grouped, flat = by_component(members, C, n_threads), shares.ravel()
    total = Sums(np.zeros(C), np.zeros((C, D)), np.zeros((C, kind.width(D))))

    def add(queue: NDArray[np.int64], tasks: NDArray[np.int64], some: KernelRows, gathered: bool) -> None:
        sum_shares(queue, tasks, some, gathered, spread, flat, grouped, mixture.means, total)

    # About a hundred tasks: fewer would not balance, more would cost more to hand out. Threads play no part.
    size = min(1 << 16, max(ROWS_PER_TASK, len(grouped.order) // 100))
    on_components(rows, grouped, size, n_threads, add, calls_blas=False)
    return total.counts, total.firsts, kind.unpack(total.scatter, D)


def on_components(
    rows: Rows, grouped: Grouped, size: int, n_threads: int,
    work: Callable[[NDArray[np.int64], NDArray[np.int64], KernelRows, bool], object], *, calls_blas: bool = True,
) -> None:  # fmt: skip
    """Call a kernel that takes tasks of about `size` pairs from a queue, with all rows.

    `work` gets the queue, tasks, rows, and whether these are gathered: rows to be converted come task by task.
    """
    order, starts, width = grouped
    spans = list(cut_groups(starts, size))
    if can_be_indexed(rows):
        queue, everyone, tasks = new_queue(), rows.kernel_rows(0, rows.shape[0]), np.array([0, *(b for _, b in spans)])
        share_kernel(
            lambda: work(queue, tasks, everyone, False), queue, min(n_threads, len(spans)), calls_blas=calls_blas
        )
        return

    def gather(span: tuple[int, int]) -> None:
        some = gather_rows(rows, order[starts[span[0]] : starts[span[1]]] // width)
        work(new_queue(), np.array(span), some, True)

    run_all(gather, spans, n_threads, calls_blas=calls_blas)


def by_component(candidates: Members, C: int, n_threads: int) -> Grouped:
    """The pairs of components that rows look at; −1 is none."""
    clusters = np.empty(candidates.size, dtype=np.int32)
    n_waking = worth_waking(n_threads, SECONDS_PER_NUMBER * candidates.size)
    on_runs(n_waking, clusters_of_entries, candidates.ravel(), C, clusters)
    starts, order = group_by(clusters, C + 1, n_threads)
    return Grouped(order, starts[:-1], candidates.shape[1])
