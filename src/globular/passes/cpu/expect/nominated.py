"""Truncated E-steps of components with correlations: their columns alone nominate, their densities decide.

A density with correlations costs many times one without. So the components of the closest cells are compared by their
variances, which matrix products can, and the few best are *nominated*; their densities, and those of K(n), are then
evaluated by component, for all rows that look at it together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.kernels import nominated as kernels
from globular.kernels.members import clusters_of_entries
from globular.model.gaussian import GaussianParameters
from globular.model.groups import group_by
from globular.model.statistics import F64, SoftStatistics
from globular.passes.cpu.assign.neighbors import kept_members
from globular.passes.cpu.expect.cells import search_cells
from globular.passes.cpu.expect.neighbors import Costs
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN, threads_for_runs
from globular.passes.limits import NOMINEES
from globular.seam.among import Probe

Members = NDArray[np.int32]
Statistics = TypeVar("Statistics", bound=SoftStatistics)
Contravariant = TypeVar("Contravariant", bound=SoftStatistics, contravariant=True)


class Pairs(Protocol[Contravariant]):
    """Rows with the components that they look at, (N, W) of them."""

    def costs(self) -> F64:
        """−2 log p(c, x) of all pairs, (N, W); inf where there is none."""
        ...

    def add(self, shares: F64, total: Contravariant) -> None:
        """Add the sums of all pairs, weighted by their shares, (N, W)."""
        ...


def truncated_step(
    shard: CpuShard,
    columns: GaussianParameters,
    among: Probe,
    pairs_of: Callable[[Members], Pairs[Statistics]],
    total: Statistics,
) -> Statistics:
    """K(n) becomes the best of K(n) and of what the closest cells nominate; `total` its statistics.

    `columns` are the components without correlations, `pairs_of` evaluates them with these.
    """
    itself = np.arange(columns.n_components, dtype=np.int32)[:, None]
    members = kept_members(shard, itself, min(among.n_candidates, columns.n_components))
    nominees, n_distances = _nominees(shard, columns, among)
    candidates, n_candidates = _joined(shard, members, nominees)
    costs, kept = pairs_of(candidates).costs(), np.empty(members.shape)
    n_threads, searched = threads_for_runs(shard), nominees.shape[1] > 0
    before = share_out(costs[:, : members.shape[1]].copy(), shard.weights, n_threads)[1] if searched else 0.0
    queue, n_runs = new_queue(), -(-shard.n_rows // RUN)
    share_kernel(
        lambda: kernels.keep_best(queue, RUN, candidates, costs, n_runs, members, kept), queue, n_threads,
        calls_blas=False,
    )  # fmt: skip
    shard.labels[:] = members[:, 0]
    total.n_distances = n_distances + n_candidates
    total.log_likelihood = share_out(kept, shard.weights, n_threads)[1]
    total.gain = total.log_likelihood - before if searched else 0.0
    pairs_of(noticeable(members, kept)).add(kept, total)
    return total


def _nominees(shard: CpuShard, columns: GaussianParameters, among: Probe) -> tuple[Members, int]:
    """The best components of the closest cells, (N, G), and the number of distances to find them."""
    if among.cells is None:
        return np.empty((shard.n_rows, 0), dtype=np.int32), 0
    found = np.full((shard.n_rows, min(NOMINEES, columns.n_components)), -1, dtype=np.int32)
    costs = np.full(found.shape, np.inf)
    return found, search_cells(shard, columns.means, Costs(columns), among.cells, among.n_probes, found, costs)


def _joined(shard: CpuShard, members: Members, nominees: Members) -> tuple[Members, int]:
    """All that rows look at, each component once, and the number of these pairs."""
    candidates = np.empty((len(members), members.shape[1] + nominees.shape[1]), dtype=np.int32)
    numbers, queue = np.empty(-(-len(members) // RUN), dtype=np.int64), new_queue()
    share_kernel(
        lambda: kernels.add_nominees(queue, RUN, members, nominees, candidates, numbers), queue,
        threads_for_runs(shard), calls_blas=False,
    )  # fmt: skip
    return candidates, int(numbers.sum())


def share_out(costs: F64, weights: F64, n_threads: int) -> tuple[F64, float]:
    """Costs become w q(c); returns log-densities and their sum by weight."""
    densities, totals, queue = np.empty(len(costs)), np.empty(-(-len(costs) // RUN)), new_queue()
    share_kernel(
        lambda: kernels.share_out(queue, RUN, costs, weights, densities, totals), queue, n_threads, calls_blas=False
    )
    return densities, float(totals.sum())


def noticeable(members: Members, shares: F64) -> Members:
    """Components without those of which a row has next to nothing; in many columns these are most."""
    return np.where(shares > 1e-30, members, -1).astype(np.int32, copy=False)


def by_component(candidates: Members, C: int, n_threads: int) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """(starts, order): the pairs of component c, numbers n · W + a, are order[starts[c]:starts[c + 1]]."""
    clusters = np.empty(candidates.size, dtype=np.int32)
    clusters_of_entries(new_queue(), RUN, candidates.ravel(), C, clusters)
    starts, order = group_by(clusters, C + 1, n_threads)
    return starts[:-1], order
