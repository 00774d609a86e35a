"""Truncated E-steps among K(n) and the components of a few cells.

The log-joint of a row and a component with a diagonal covariance is an inner product of [x] (one variance a component)
or [x, x²] (one a column) with parameters of the component, plus what depends on one of the two alone. So the components
of a cell are compared by a matrix product, in the kernel that also chooses the C′ best (`cells`).

A density with correlations costs many times one without. There the components of the closest cells are compared by
their variances, and the few best are *nominated*; their densities, and those of K(n), are then evaluated by component,
for all rows that look at it together: BLAS does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, kernel, take_number
from globular.model.gaussian import GaussianParameters
from globular.model.low_rank import NO_WEIGHT_COST
from globular.model.statistics import F64, SoftStatistics, TruncatedPosterior
from globular.passes.cpu.assign.neighbors import kept_members
from globular.passes.cpu.engine.decide import insert
from globular.passes.cpu.expect.cells import is_member, search_cells
from globular.passes.cpu.expect.neighbors import Costs, Members, by_component, costs_of, share_out, soft_sums
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import COSTS_AT_ONCE, GATHERED_AT_ONCE, NOMINEES, NONE, RUN, on_runs, threads_for_runs
from globular.seam.among import Probe
from globular.seam.answers import Answer, Blurred, Truncated
from globular.seam.mixture_passes import Expect
from globular.threads import even_ranges, run_all


@kernel
def add_nominees(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    members: Any,  # IN  (N, C′) K(n); −1 where there is none
    nominees: Any,  # IN  (N, G); −1 where there is none
    candidates: Any,  # OUT (N, C′ + G) both, each component once; −1 where there is none
    n_candidates: Any,  # OUT (runs,) how many they are
) -> None:
    """What rows look at. O(N · G · C′)."""
    C_prime = members.shape[1]
    run = take_number(queue)
    while run < n_candidates.shape[0]:
        n_candidates[run] = 0
        for i in range(run * length, min((run + 1) * length, members.shape[0])):
            for a in range(C_prime):
                candidates[i, a] = members[i, a]
                n_candidates[run] += members[i, a] >= 0
            for a in range(nominees.shape[1]):
                new = nominees[i, a] >= 0 and not is_member(nominees[i, a], members, i)
                candidates[i, C_prime + a] = nominees[i, a] if new else -1
                n_candidates[run] += new
        run = take_number(queue)


@kernel
def keep_best(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    candidates: Any,  # IN  (N, W)
    costs: Any,  # IN  (N, W) inf where there is no candidate
    n_runs: int,  # IN
    members: Any,  # OUT (N, C′) the candidates of lowest cost, lowest first; −1 where there are fewer
    kept: Any,  # OUT (N, C′) their costs; inf where there is none
) -> None:
    """K(n), of which the earlier candidate wins a tie. O(N · W · C′) at most."""
    last = members.shape[1] - 1
    run = take_number(queue)
    while run < n_runs:
        for i in range(run * length, min((run + 1) * length, members.shape[0])):
            for a in range(last + 1):
                members[i, a] = -1
                kept[i, a] = np.inf
            for a in range(candidates.shape[1]):
                if candidates[i, a] >= 0 and costs[i, a] < kept[i, last]:
                    insert(costs[i, a], candidates[i, a], kept[i], members[i], last)
        run = take_number(queue)


# --- drivers ---------------------------------------------------------------------------------------------------------


Statistics = TypeVar("Statistics", bound=SoftStatistics)


def truncated_step(
    shard: CpuShard, columns: GaussianParameters, among: Probe, pairs_of: Callable[[Members], Any], total: Statistics
) -> Statistics:
    """K(n) becomes the best of K(n) and of what the closest cells nominate; `total` its statistics.

    `columns` are the components without correlations; with these `pairs_of` evaluates the (N, W) that rows look at. It
    makes what knows `costs()`, −2 log p(c, x) of all pairs, and how to `add(shares, total)`, their sums.
    """
    itself = np.arange(columns.n_components, dtype=np.int32)[:, None]
    members = kept_members(shard, itself, min(among.n_candidates, columns.n_components))
    nominees, n_distances = _nominees(shard, columns, among)
    candidates = np.empty((len(members), members.shape[1] + nominees.shape[1]), dtype=np.int32)
    n_runs, n_threads = -(-shard.n_rows // RUN), threads_for_runs(shard)
    n_candidates = np.empty(n_runs, dtype=np.int64)
    on_runs(n_threads, add_nominees, members, nominees, candidates, n_candidates)
    costs, kept = pairs_of(candidates).costs(), np.empty(members.shape)
    searched = nominees.shape[1] > 0
    before = share_out(costs[:, : members.shape[1]].copy(), shard.weights, shard.n_threads)[1] if searched else 0.0
    on_runs(n_threads, keep_best, candidates, costs, n_runs, members, kept)
    shard.labels[:] = members[:, 0]
    total.n_distances = n_distances + int(n_candidates.sum())
    total.log_likelihood = share_out(kept, shard.weights, shard.n_threads)[1]
    total.gain = total.log_likelihood - before if searched else 0.0
    pairs_of(noticeable(members, kept)).add(kept, total)
    return total


def _nominees(shard: CpuShard, columns: GaussianParameters, among: Probe) -> tuple[Members, int]:
    """The best components of the closest cells, (N, G), and the number of distances to find them."""
    if among.cells is None:
        return np.empty((shard.n_rows, 0), dtype=np.int32), 0
    found = np.full((shard.n_rows, min(NOMINEES, columns.n_components)), -1, dtype=np.int32)
    costs = np.full(found.shape, np.inf)
    return found, search_cells(shard, Costs(columns), among.cells, among.n_probes, found, costs)


def noticeable(members: Members, shares: F64) -> Members:
    """Components without those of which a row has next to nothing; in many columns these are most."""
    return np.where(shares > 1e-30, members, -1).astype(np.int32, copy=False)


class FullPairs:
    """A mixture with matrices, and rows with the components that they look at."""

    def __init__(self, shard: CpuShard, mixture: GaussianParameters, candidates: Members) -> None:
        self._shard, self._mixture, self._size = shard, mixture, candidates.shape
        self._order, self._starts, _ = by_component(candidates, mixture.n_components, shard.n_threads)

    def _of(self, c: int) -> Iterator[tuple[NDArray[np.integer], F64]]:
        """The pairs of a component in blocks, with x − μ."""
        for begin in range(self._starts[c], self._starts[c + 1], GATHERED_AT_ONCE):
            pairs = self._order[begin : min(begin + GATHERED_AT_ONCE, self._starts[c + 1])]
            yield pairs, self._shard.take(pairs // self._size[1]) - self._mixture.means[c]

    def costs(self) -> F64:
        """−2 log p(c, x) of all pairs, (N, W); inf where there is none."""
        factors, found = self._mixture.each(self._mixture.factors), np.full(self._size, np.inf)
        biases, flat = np.minimum(-2.0 * self._mixture.log_constants, NO_WEIGHT_COST), found.ravel()

        def measure(c: int) -> None:
            for pairs, away in self._of(c):
                white = away @ factors[c]
                flat[pairs] = biases[c] + np.einsum("nd,nd->n", white, white)

        run_all(measure, range(self._mixture.n_components), self._shard.n_threads)
        return found

    def add(self, shares: F64, total: SoftStatistics) -> None:
        """Add the sums of all pairs, weighted by their shares, (N, W)."""
        flat = shares.ravel()

        def add(c: int) -> None:
            for pairs, away in self._of(c):
                weighted = flat[pairs, None] * away
                total.counts[c] += flat[pairs].sum()
                total.sums[c] += weighted.sum(axis=0)
                total.scatter[c] += weighted.T @ away

        run_all(add, range(self._mixture.n_components), self._shard.n_threads)

    def reconstruct(self, shares: F64, noise: F64, out: F64) -> None:
        """Add Σ_c q(c) (x − noise Σ_c⁻¹ (x − μ_c)) of every row."""
        factors, flat = self._mixture.each(self._mixture.factors), shares.ravel()
        for c in range(self._mixture.n_components):
            for pairs, away in self._of(c):
                seen = away + self._mixture.means[c]
                out[pairs // self._size[1]] += flat[pairs, None] * (seen - noise * (away @ factors[c] @ factors[c].T))


@CpuShard.implements(Expect, Probe)
def expect_probe(shard: CpuShard, work: Expect) -> SoftStatistics:
    """Truncated E-step of a mixture among K(n) and the components of the closest cells."""
    assert isinstance(work.among, Probe)
    mixture, cells = work.mixture, work.among.cells
    (C, D), kind = mixture.means.shape, mixture.family.scatter
    if not kind.separable:
        columns = GaussianParameters(mixture.weights, mixture.means, np.ascontiguousarray(mixture.variances()), "diag")
        total = SoftStatistics(np.zeros(C), np.zeros((C, D)), np.zeros(kind.shape(C, D)), 0.0, shard.total_weight, 0)
        return truncated_step(shard, columns, work.among, lambda some: FullPairs(shard, mixture, some), total)
    itself = np.arange(C, dtype=np.int32)[:, None]
    members, weighed = kept_members(shard, itself, work.among.n_candidates), Costs(mixture)
    costs, n_distances = costs_of(shard.rows, weighed.search, members, shard.n_threads, sort=True)
    scale, before = (weighed.unit, weighed.base), np.nan
    if cells is not None:
        before = share_out(costs.copy(), shard.weights, shard.n_threads, *scale)[1]
        n_distances += search_cells(shard, weighed, cells, work.among.n_probes, members, costs)
    shard.labels[:] = members[:, 0]
    bound = share_out(costs, shard.weights, shard.n_threads, *scale)[1]
    gain = 0.0 if cells is None else bound - before
    sums = soft_sums(shard.rows, mixture, members, costs, shard.n_threads)
    return SoftStatistics(*sums, bound, shard.total_weight, n_distances, gain=gain)


@CpuShard.implements(Answer, Truncated)
def truncated_posterior(shard: CpuShard, work: Answer) -> list[Any]:
    """The "posterior" of the K(n) that the last pass has left, or its "log_densities" alone. O(N · C′ · D)."""
    mixture = work.model.mixture
    members = cast(Members, shard.state.get("members", np.int32, -1, width=work.model.n_candidates))
    if mixture.family.scatter.separable:
        shares = costs_of(shard.rows, Costs(mixture).exact, members, shard.n_threads)[0]
    else:
        shares = FullPairs(shard, mixture, members).costs()
    log_densities = share_out(shares, NONE, shard.n_threads)[0]
    return [log_densities if work.want == "log_densities" else TruncatedPosterior(members, shares, log_densities)]


@CpuShard.implements(Answer, Blurred)
def answer_blurred(shard: CpuShard, work: Answer) -> list[Any]:
    """The expected rows before noise was added, (N, D). O(N · C · D²), or C′ for C."""
    asked: Blurred = work.model
    C, n_candidates = asked.mixture.n_components, asked.n_candidates
    found, members = np.zeros((shard.n_rows, shard.n_columns)), np.arange(C, dtype=np.int32)[None]
    if n_candidates:
        members = cast(Members, shard.state.get("members", np.int32, -1, width=n_candidates))

    def write(span: tuple[int, int]) -> None:
        part, n = CpuShard(shard.dense_rows.block(*span)), span[1] - span[0]
        known = members[slice(*span)] if n_candidates else np.repeat(members, n, axis=0)
        shares = FullPairs(part, asked.mixture, np.ascontiguousarray(known)).costs()
        share_out(shares, NONE, 1)
        FullPairs(part, asked.mixture, noticeable(known, shares)).reconstruct(shares, asked.noise, found[slice(*span)])

    size = max(1, min(GATHERED_AT_ONCE, COSTS_AT_ONCE // members.shape[1]))
    run_all(write, even_ranges(shard.n_rows, size), shard.n_threads)
    return [found]
