"""Truncated E-steps of components with covariance matrices: rows are brought together by component, BLAS does the rest.

O(N · (C′ + G) · D²) for a pass that searches; of all rows none is compared with all components.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from globular.model.gaussian import GaussianParameters
from globular.model.low_rank import ABSENT
from globular.model.statistics import F64, SoftStatistics
from globular.passes.cpu.expect.nominated import Members, by_component, noticeable, share_out, truncated_step
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import GATHERED_AT_ONCE, NONE, threads_for_runs
from globular.passes.limits import COSTS_AT_ONCE
from globular.seam.among import Probe
from globular.seam.answers import Answer, Blurred
from globular.seam.mixture_passes import Expect
from globular.threads import even_ranges, run_all


class FullPairs:
    """A mixture with matrices, and rows with the components that they look at."""

    def __init__(self, shard: CpuShard, mixture: GaussianParameters, candidates: Members) -> None:
        self._shard, self._mixture, self._size = shard, mixture, candidates.shape
        self._starts, self._order = by_component(candidates, mixture.n_components, shard.n_threads)

    def _of(self, c: int) -> Iterator[tuple[NDArray[np.integer], F64]]:
        """The pairs of a component in blocks, with x − μ."""
        for begin in range(self._starts[c], self._starts[c + 1], GATHERED_AT_ONCE):
            pairs = self._order[begin : min(begin + GATHERED_AT_ONCE, self._starts[c + 1])]
            yield pairs, self._shard.take(pairs // self._size[1]) - self._mixture.means[c]

    def costs(self) -> F64:
        """See `nominated.Pairs`."""
        factors, found = self._mixture.each(self._mixture.factors), np.full(self._size, np.inf)
        biases, flat = np.minimum(-2.0 * self._mixture.log_constants, ABSENT), found.ravel()

        def measure(c: int) -> None:
            for pairs, away in self._of(c):
                white = away @ factors[c]
                flat[pairs] = biases[c] + np.einsum("nd,nd->n", white, white)

        run_all(measure, range(self._mixture.n_components), self._shard.n_threads)
        return found

    def add(self, shares: F64, total: SoftStatistics) -> None:
        """See `nominated.Pairs`."""
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


def expect_full(shard: CpuShard, work: Expect) -> SoftStatistics:
    """Truncated E-step among K(n) and what the closest cells nominate."""
    assert isinstance(work.among, Probe)
    mixture = work.mixture
    (C, D), kind = mixture.means.shape, mixture.family.scatter
    columns = GaussianParameters(mixture.weights, mixture.means, np.ascontiguousarray(mixture.variances()), "diag")
    total = SoftStatistics(np.zeros(C), np.zeros((C, D)), np.zeros(kind.shape(C, D)), 0.0, shard.total_weight, 0)
    return truncated_step(shard, columns, work.among, lambda members: FullPairs(shard, mixture, members), total)


def settle_full(shard: CpuShard, mixture: GaussianParameters, members: Members) -> tuple[F64, F64]:
    """Probabilities of the members, (N, C′), and log Σ_{c ∈ K(n)} p(c, x), (N,)."""
    shares = FullPairs(shard, mixture, members).costs()
    return shares, share_out(shares, NONE, threads_for_runs(shard))[0]


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
        shares, _ = settle_full(part, asked.mixture, np.ascontiguousarray(known))
        FullPairs(part, asked.mixture, noticeable(known, shares)).reconstruct(shares, asked.noise, found[slice(*span)])

    run_all(
        write,
        even_ranges(shard.n_rows, max(1, min(GATHERED_AT_ONCE, COSTS_AT_ONCE // members.shape[1]))),
        shard.n_threads,
    )
    return [found]
