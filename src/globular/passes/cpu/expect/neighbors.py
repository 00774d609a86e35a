"""Truncated E-steps of mixtures with diagonal covariances: K(n) among the neighbourhoods of its components."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.kernels import members as kernels
from globular.model.gaussian import GaussianParameters
from globular.model.groups import group_by
from globular.model.statistics import F64, SoftStatistics
from globular.passes.cpu.assign.neighbors import SquaredDistances, kept_members, search_candidates_of
from globular.passes.cpu.grouped import ROWS_PER_TASK, cut_groups
from globular.passes.cpu.rows import KernelRows, can_be_indexed, gather_rows, on_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN, runs_of, threads_for_runs
from globular.seam.among import Neighbors
from globular.seam.mixture_passes import Expect
from globular.threads import run_all


@CpuShard.implements(Expect, Neighbors)
def expect_neighbors(shard: CpuShard, work: Expect) -> SoftStatistics:
    """Truncated E-step of a mixture with diagonal covariances among the neighbourhoods of K(n)."""
    assert isinstance(work.among, Neighbors)
    mixture, graph, search = work.mixture, work.among.graph, work.among.search
    members = kept_members(shard, graph, search.n_candidates)
    costs = Costs(mixture)
    n_distances, pairs = search_candidates_of(shard, mixture.means, costs, graph, search, members)
    shard.labels[:] = members[:, 0]
    shares, _, bound = settle_soft(shard, mixture, costs, members, shard.weights)
    counts, sums, scatter = soft_sums(shard, mixture, members, shares)
    return SoftStatistics(counts, sums, scatter, bound, shard.total_weight, n_distances, pairs)


def settle_soft(
    shard: CpuShard, mixture: GaussianParameters, costs: Costs, members: NDArray[np.int32], weights: F64
) -> tuple[F64, F64, float]:
    """w q(c) of the members, (N, C′), the terms of Eq. 10, (N,), and their sum."""
    shares, bounds = np.empty(members.shape), np.empty(len(members))
    totals = np.empty(-(-shard.n_rows // RUN))

    def settle(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        kernels.settle_soft(
            queue, RUN, rows, weights[part], mixture.means, costs.precisions, costs.biases, members[part],
            shares[part], bounds[part], totals[runs_of(part)],
        )  # fmt: skip

    on_rows(shard.rows, threads_for_runs(shard, members.shape[1] * shard.n_columns), settle, calls_blas=False)
    return shares, bounds, float(totals.sum())


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


def _rows_per_task(n_rows: int) -> int:
    """About a hundred tasks: fewer would not balance, more would cost more to hand out. Threads play no part."""
    return min(1 << 16, max(ROWS_PER_TASK, n_rows // 100))


def soft_sums(
    shard: CpuShard, mixture: GaussianParameters, members: NDArray[np.int32], shares: F64
) -> tuple[F64, F64, F64]:
    """Counts, sums and scatter of the truncated M-step: the entries of K(n) sorted by cluster."""
    means = mixture.means
    C, D = means.shape
    C_prime = members.shape[1]
    clusters, queue, threads = np.empty(members.size, dtype=np.int32), new_queue(), threads_for_runs(shard, C_prime)
    share_kernel(
        lambda: kernels.clusters_of_entries(queue, RUN, members.ravel(), C, clusters), queue, threads, calls_blas=False
    )
    starts, order = group_by(clusters, C + 1, shard.n_threads)
    counts, sums, scatter = np.zeros(C), np.zeros((C, D)), np.zeros(mixture.family.scatter.shape(C, D))
    flat = shares.ravel()

    def add(queue: NDArray[np.int64], tasks: NDArray[np.int64], rows: KernelRows, gathered: bool) -> None:
        kernels.sum_shares(
            queue, tasks, rows, gathered, flat, C_prime, order, starts, means, counts, sums, scatter
        )  # fmt: skip

    spans = list(cut_groups(starts[:-1], _rows_per_task(len(order))))
    if can_be_indexed(shard.rows):
        queue, rows, tasks = new_queue(), shard.rows.kernel_rows(0, shard.n_rows), np.array([0, *(b for _, b in spans)])
        share_kernel(lambda: add(queue, tasks, rows, False), queue, min(shard.n_threads, len(spans)), calls_blas=False)
    else:

        def gather_and_add(span: tuple[int, int]) -> None:
            entries = order[starts[span[0]] : starts[span[1]]]
            add(new_queue(), np.array(span), gather_rows(shard.rows, entries // C_prime), True)

        run_all(gather_and_add, spans, shard.n_threads, calls_blas=False)
    return counts, sums, scatter
