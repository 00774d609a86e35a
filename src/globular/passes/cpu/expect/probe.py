"""The probing pass of mixtures: K(n) becomes the best of the old K(n) and the components of a few cells.

The log-joint of a row and a component with a diagonal covariance is an inner product of [x] (one variance a component)
or [x, x²] (one a column) with parameters of the component, plus what depends on one of the two alone. So the components
of a cell are compared by a matrix product, in the kernel that also chooses the C′ best (`expect.cells`). Covariances
with correlations have a way of their own (`expect.nominated`).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from globular.model.statistics import SoftStatistics, TruncatedPosterior
from globular.passes.cpu.assign.neighbors import kept_members
from globular.passes.cpu.expect.cells import search_cells
from globular.passes.cpu.expect.neighbors import Costs, Members, costs_of, share_out, soft_sums
from globular.passes.cpu.expect.nominated import FullPairs, expect_full
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import NONE, threads_for_runs
from globular.seam.among import Probe
from globular.seam.answers import Answer, Truncated
from globular.seam.mixture_passes import Expect


@CpuShard.implements(Expect, Probe)
def expect_probe(shard: CpuShard, work: Expect) -> SoftStatistics:
    """Truncated E-step of a mixture among K(n) and the components of the closest cells."""
    assert isinstance(work.among, Probe)
    mixture, cells = work.mixture, work.among.cells
    if not mixture.family.scatter.separable:
        return expect_full(shard, work)
    itself = np.arange(mixture.n_components, dtype=np.int32)[:, None]
    members, weighed = kept_members(shard, itself, work.among.n_candidates), Costs(mixture)
    costs, n_distances = costs_of(shard, weighed.search, members, sort=True)
    # an exponential takes as long as to read eight numbers
    threads, scale, before = threads_for_runs(shard, 8 * costs.shape[1]), (weighed.unit, weighed.base), np.nan
    if cells is not None:
        before = share_out(costs.copy(), shard.weights, threads, *scale)[1]
        n_distances += search_cells(shard, weighed, cells, work.among.n_probes, members, costs)
    shard.labels[:] = members[:, 0]
    bound = share_out(costs, shard.weights, threads, *scale)[1]
    gain = 0.0 if cells is None else bound - before
    return SoftStatistics(
        *soft_sums(shard, mixture, members, costs), bound, shard.total_weight, n_distances, gain=gain
    )  # fmt: skip


@CpuShard.implements(Answer, Truncated)
def truncated_posterior(shard: CpuShard, work: Answer) -> list[Any]:
    """The "posterior" of the K(n) that the last pass has left, or its "log_densities" alone. O(N · C′ · D)."""
    mixture = work.model.mixture
    members = cast(Members, shard.state.get("members", np.int32, -1, width=work.model.n_candidates))
    if mixture.family.scatter.separable:
        shares = costs_of(shard, Costs(mixture).exact, members)[0]
    else:
        shares = FullPairs(shard, mixture, members).costs()
    log_densities = share_out(shares, NONE, threads_for_runs(shard, 8 * shares.shape[1]))[0]
    return [log_densities if work.want == "log_densities" else TruncatedPosterior(members, shares, log_densities)]
