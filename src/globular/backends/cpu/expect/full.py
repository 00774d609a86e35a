"""Truncated E-steps of components with covariance matrices: rows are brought together by component, BLAS does the rest.

O(N · (C′ + G) · D²) for a pass that searches; of all rows none is compared with all components.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.expect.nominated import Members, by_component, share_out, truncated_step
from globular.backends.cpu.shard import CpuShard
from globular.backends.host import NONE, threads_for_runs
from globular.model.gaussian import GaussianParameters
from globular.model.low_rank import ABSENT
from globular.model.statistics import F64, SoftStatistics
from globular.seam.among import Probe
from globular.seam.mixture_passes import Expect
from globular.threads import run_all

ROWS_AT_ONCE = 1 << 11
"""Rows of a component that a thread brings together."""


class FullPairs:
    """A mixture with matrices, and rows with the components that they look at."""

    def __init__(self, shard: CpuShard, mixture: GaussianParameters, candidates: Members) -> None:
        self._shard, self._mixture, self._size = shard, mixture, candidates.shape
        self._starts, self._order = by_component(candidates, mixture.n_components, shard.n_threads)

    def _of(self, c: int) -> Iterator[tuple[NDArray[np.integer], F64]]:
        """The pairs of a component in blocks, with x − μ."""
        for begin in range(self._starts[c], self._starts[c + 1], ROWS_AT_ONCE):
            pairs = self._order[begin : min(begin + ROWS_AT_ONCE, self._starts[c + 1])]
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
