"""The probing pass of mixtures: K(n) becomes the best of the old K(n) and the components of a few cells.

The log-joint of a row and a component with a diagonal covariance is an inner product of [x] (one variance a component)
or [x, x²] (one a column) with parameters of the component, plus what depends on one of the two alone. So the components
of a cell are compared by a matrix product, in the kernel that also chooses the C′ best (`expect.cells`). Covariances
with correlations have a way of their own (`expect.nominated`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, kernel, new_queue, share_kernel, take_number
from globular.model.statistics import F64, SoftStatistics, TruncatedPosterior
from globular.passes.cpu.assign.neighbors import kept_members
from globular.passes.cpu.expect.cells import exact_cost, search_cells, take_in
from globular.passes.cpu.expect.neighbors import Costs, settle_soft, soft_sums
from globular.passes.cpu.expect.nominated import expect_full, settle_full
from globular.passes.cpu.rows import KernelRows, on_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN, runs_of, threads_for_runs
from globular.seam.among import Probe
from globular.seam.answers import Answer, Truncated
from globular.seam.mixture_passes import Expect


@kernel
def own_costs(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    rows: Any,  # IN  (array,)
    means: Any,  # IN  (C, D) float64
    precisions: Any,  # IN  (C, 1) or (C, D) float64
    biases: Any,  # IN  (C,) float64
    members: Any,  # IN/OUT (N, C′) K(n), sorted by cost; −1 where there is none
    costs: Any,  # OUT (N, C′) ascending; inf where there is no member
    n_costs: Any,  # OUT (runs,) components looked at
) -> None:
    """What K(n) costs at these parameters. O(N · C′ · D)."""
    run = take_number(queue)
    while run < n_costs.shape[0]:
        n_costs[run] = 0
        for i in range(run * length, min((run + 1) * length, members.shape[0])):
            for a in range(members.shape[1]):
                c = members[i, a]
                if c < 0:
                    costs[i, a] = np.inf
                    continue
                take_in(exact_cost(rows[0], i, means, c, precisions, biases), c, costs, members, i, a)
                n_costs[run] += 1
        run = take_number(queue)


@kernel
def free_energy(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    costs: Any,  # IN  (N, C′) ascending
    unit: float,  # IN  −2 log p(c, x) = unit · cost + base
    base: float,  # IN
    weights: Any,  # IN  (N,) or empty
    totals: Any,  # OUT (runs,) Σ w log Σ_{c∈K(n)} p(c, x), Eq. 10
) -> None:
    """O(N · C′)."""
    run = take_number(queue)
    while run < totals.shape[0]:
        totals[run] = 0.0
        for i in range(run * length, min((run + 1) * length, costs.shape[0])):
            norm = 0.0
            for a in range(costs.shape[1]):
                norm += np.exp(-0.5 * unit * (costs[i, a] - costs[i, 0]))
            weight = weights[i] if weights.shape[0] else 1.0
            totals[run] += weight * (np.log(norm) - 0.5 * (unit * costs[i, 0] + base))
        run = take_number(queue)


@kernel
def shares_of_costs(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    costs: Any,  # IN  (N, C′) ascending; OUT w q(c): Eq. 5, the posterior renormalised over K(n)
    unit: float,  # IN
    base: float,  # IN
    weights: Any,  # IN  (N,) or empty
    totals: Any,  # OUT (runs,) as in `free_energy`
) -> None:
    """Truncated responsibilities in the place of costs. O(N · C′)."""
    run = take_number(queue)
    while run < totals.shape[0]:
        totals[run] = 0.0
        for i in range(run * length, min((run + 1) * length, costs.shape[0])):
            lowest, norm = costs[i, 0], 0.0
            for a in range(costs.shape[1]):
                costs[i, a] = np.exp(-0.5 * unit * (costs[i, a] - lowest))
                norm += costs[i, a]
            weight = weights[i] if weights.shape[0] else 1.0
            for a in range(costs.shape[1]):
                costs[i, a] *= weight / norm
            totals[run] += weight * (np.log(norm) - 0.5 * (unit * lowest + base))
        run = take_number(queue)


# --- drivers ---------------------------------------------------------------------------------------------------------


@CpuShard.implements(Expect, Probe)
def expect_probe(shard: CpuShard, work: Expect) -> SoftStatistics:
    """Truncated E-step of a mixture among K(n) and the components of the closest cells."""
    assert isinstance(work.among, Probe)
    mixture, cells = work.mixture, work.among.cells
    if not mixture.family.scatter.separable:
        return expect_full(shard, work)
    itself = np.arange(mixture.n_components, dtype=np.int32)[:, None]
    members = kept_members(shard, itself, work.among.n_candidates)
    weighed = Costs(mixture)
    costs = np.empty(members.shape)
    n_distances = _own_costs(shard, mixture.means, weighed, members, costs)
    before = np.nan
    if cells is not None:
        before = _free_energy(shard, weighed, costs)
        n_distances += search_cells(shard, mixture.means, weighed, cells, work.among.n_probes, members, costs)
    shard.labels[:] = members[:, 0]
    bound = _shares(shard, weighed, costs)
    sums = soft_sums(shard, mixture, members, costs)
    gain = 0.0 if cells is None else bound - before
    return SoftStatistics(*sums, bound, shard.total_weight, n_distances, gain=gain)


def _own_costs(shard: CpuShard, means: F64, weighed: Costs, members: NDArray[np.int32], costs: F64) -> int:
    """The costs of K(n), which is sorted by them; returns their number."""
    n_costs = np.empty(-(-shard.n_rows // RUN), dtype=np.int64)

    def measure(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        own_costs(
            queue, RUN, rows, means, weighed.search_precisions, weighed.search_biases, members[part], costs[part],
            n_costs[runs_of(part)],
        )  # fmt: skip

    on_rows(shard.rows, threads_for_runs(shard, members.shape[1] * shard.n_columns), measure, calls_blas=False)
    return int(n_costs.sum())


def _shares(shard: CpuShard, weighed: Costs, costs: F64) -> float:
    """The free energy; costs become w q(c)."""
    return _on_costs(shard, shares_of_costs, weighed, costs)


def _free_energy(shard: CpuShard, weighed: Costs, costs: F64) -> float:
    return _on_costs(shard, free_energy, weighed, costs)


def _on_costs(shard: CpuShard, kernel: Callable[..., None], weighed: Costs, costs: F64) -> float:
    """What a kernel finds in runs of rows, added up."""
    totals, queue = np.empty(-(-shard.n_rows // RUN)), new_queue()
    threads = threads_for_runs(shard, 8 * costs.shape[1])  # an exponential takes as long as to read eight numbers
    share_kernel(
        lambda: kernel(queue, RUN, costs, weighed.unit, weighed.base, shard.weights, totals), queue, threads,
        calls_blas=False,
    )  # fmt: skip
    return float(totals.sum())


@CpuShard.implements(Answer, Truncated)
def truncated_posterior(shard: CpuShard, work: Answer) -> list[Any]:
    """The "posterior" of the K(n) that the last pass has left, or its "log_densities" alone. O(N · C′ · D)."""
    mixture, n_candidates = work.model.mixture, work.model.n_candidates
    members = cast(NDArray[np.int32], shard.state.get("members", np.int32, -1, width=n_candidates))
    if mixture.family.scatter.separable:
        probabilities, log_densities, _ = settle_soft(shard, mixture, Costs(mixture), members, np.empty(0))
    else:
        probabilities, log_densities = settle_full(shard, mixture, members)
    return [
        log_densities if work.want == "log_densities" else TruncatedPosterior(members, probabilities, log_densities)
    ]
