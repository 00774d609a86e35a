"""Mixtures by probing: truncated variational EM whose candidates come from cells of components.

K(n), the C′ components that row n keeps, is searched as in probing k-means: the means are clustered into cells, redrawn
every time, and K(n) becomes the C′ of largest p(c, x) among the old K(n) and the components of the row's closest cells.
The old K(n) is among the candidates, so the free energy never falls (Prop. 1 of Forster & Lücke 2018).

*When to probe.* EM takes many iterations to converge, and after the first ones most of what an iteration gains comes
from the M-step, not from new candidates. Such iterations can do with the K(n) they have, which costs C′ densities a
row. A probing pass knows what its search was good for, because it computes the free energy with the old K(n) as well.
If the search has gained more for its work than the rest of the iteration for its own, the next one comes in half as
many iterations, else in twice as many (`Schedule`). Work is counted in densities, not in seconds, so that the same fit
takes the same steps on any machine and any number of threads. Between two searches neighbourhoods could be looked at
instead, as by `SearchByNeighborhoods`; that costs as much as probing and finds less.

*When to stop.* When a few iterations running have gained next to nothing; such iterations probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from globular.algorithms.kmeans.cells import draw_cells, graph_by_cells, label_by_cells
from globular.algorithms.kmeans.pipeline import QUALITIES
from globular.algorithms.kmeans.probing import N_PROBES, ProbingOptions
from globular.algorithms.kmeans.swaps import swap_and_step
from globular.algorithms.kmeans.variational import VariationalOptions, start_rows
from globular.algorithms.mixtures.variational import (
    CandidateSearch,
    SearchByNeighborhoods,
    SoftStart,
    truncated_em,
    warm_up_mixture,
    with_variance,
)
from globular.algorithms.seeding.named import Start
from globular.algorithms.steps import Run, Step
from globular.model.covariances import CovarianceLimits
from globular.model.gaussian import Components, GaussianParameters
from globular.model.graph import Graph
from globular.model.statistics import F64, SoftStatistics
from globular.seam.among import Probe
from globular.seam.answers import Truncated
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign
from globular.seam.shard import Shard

LONGEST_WAIT = 8
"""Most iterations from one that probes to the next."""
WORK_OF_A_MEMBER = 40.0
"""Densities of a search, which are entries of matrix products, that take as long as a density of K(n) with its part in
the sums of the M-step (measured with 2, 50 and 128 columns: 30 to 50)."""


class Schedule:
    """Which iterations probe: by what the last search has gained for its work, beside the rest of its iteration."""

    def __init__(self, n_candidates: int) -> None:
        self._C_prime = n_candidates
        self._period, self._waited = 1, 0

    def is_due(self, *, idle: bool) -> bool:
        """Whether the next iteration probes; one that follows an iteration without a gain does."""
        self._waited += 1
        return idle or self._waited >= self._period

    def learn(self, found: SoftStatistics, before: float, n_rows: int) -> None:
        """From a probing iteration; `before` is the free energy that the iteration before it has reached."""
        work = (found.n_distances / n_rows - self._C_prime) / (WORK_OF_A_MEMBER * self._C_prime)
        others = found.log_likelihood - found.gain - before
        pays = found.gain >= work * others
        self._period = max(1, self._period // 2) if pays else min(LONGEST_WAIT, 2 * self._period)
        self._waited = 0


def settle_seeds(shard: Shard, seeds: F64, rng: np.random.Generator) -> Iterator[Step[F64]]:
    """Means to start from: swaps and steps of probing k-means from the seeds. Rows must be labelled, and are again.

    From seeds alone EM ends lower: it cannot carry a mean across a gap, and has many more steps to go.
    """
    return swap_and_step(shard, seeds, ProbingOptions(N_PROBES, min_gain=QUALITIES["balanced"].least_gains[1]), rng)


def start_probing(
    shard: Shard,
    mixture: GaussianParameters,
    options: VariationalOptions,
    rng: np.random.Generator,
    *,
    limits: CovarianceLimits,
    labelled: bool,
    keep_covariances: bool = False,
) -> SoftStart:
    """Labels of the rows and a first σ² = Σ w ‖x − μ‖² / (D Σ w): one probing pass of k-means instead of a warm-up.

    `labelled` says that `shard.labels` belong to the means already. `keep_covariances` leaves those of `mixture` in
    place.
    """
    cells = draw_cells(shard, mixture.means, rng)
    if not labelled:
        label_by_cells(shard, mixture.means, cells)
    n_distances = 0
    if not keep_covariances:
        found = shard.run(Assign(mixture.means, Probe(cells, N_PROBES), "labels"))
        n_distances = found.n_distances
        mixture = with_variance(mixture, found.objective / shard.total_weight, limits)
    return SoftStart(mixture, graph_by_cells(shard, mixture.means, cells, options.G), n_distances)


def begin_truncated(
    shard: Shard,
    mixture: GaussianParameters,
    chosen: Start,
    options: VariationalOptions,
    rng: np.random.Generator,
    *,
    limits: CovarianceLimits,
    probes: bool,
    keep_covariances: bool,
    learned_weights: bool,
) -> tuple[Run, Graph]:
    """EM among few components of each row from chosen means, and their first neighbourhoods.

    The E-steps before the first iteration find labels, neighbourhoods and a variance. `probes` says where rows search.
    """
    if probes:
        start = start_probing(
            shard, mixture, options, rng, limits=limits, labelled=chosen.labelled, keep_covariances=keep_covariances
        )
        search: CandidateSearch = SearchByProbing(shard, start.graph, options, rng)
    else:
        graph = None if options.printed else start_rows(shard, mixture.means, chosen.graph, options.G, rng)
        start = warm_up_mixture(
            shard, mixture, options, rng, limits=limits, graph=graph, keep_covariances=keep_covariances
        )
        search = SearchByNeighborhoods(shard, start.graph, options, rng)
    steps = truncated_em(shard, start, search, options, limits=limits, learned_weights=learned_weights)
    return Run(steps, start.mixture), start.graph


class SearchByProbing:
    """E-steps among K(n) and, when it is due, what cells nominate; the cells also lead to the closest components.

    `expect` is the pass: `Expect`, or `ExpectLowRank` of factor analysers.
    """

    def __init__(
        self,
        shard: Shard,
        graph: Graph,
        options: VariationalOptions,
        rng: np.random.Generator,
        expect: Callable[..., Any] = Expect,
    ) -> None:
        self._shard, self._options, self._rng, self._expect = shard, options, rng, expect
        self.find_graph: Callable[[], Graph] = lambda: graph
        self._schedule, self._before = Schedule(options.C_prime), -np.inf

    def e_step(self, mixture: Any, *, idle: bool) -> Any:
        """What an M-step needs; `idle` follows an iteration that has improved next to nothing."""
        options = self._options
        if self._schedule.is_due(idle=idle):
            cells = draw_cells(self._shard, mixture.means, self._rng)
            found = self._shard.run(self._expect(mixture, Probe(cells, N_PROBES, options.C_prime)))
            self._schedule.learn(found, self._before, self._shard.n_rows)
            self.find_graph = cache(partial(graph_by_cells, self._shard, mixture.means, cells, options.G))
        else:
            found = self._shard.run(self._expect(mixture, Probe(None, 0, options.C_prime)))
        self._before = found.log_likelihood
        return found


NO_GRAPH: Graph = np.zeros((0, 1), dtype=np.int32)
"""For a search whose neighbourhoods nobody asks for."""


def find_members(
    shard: Shard,
    mixture: Components,
    n_candidates: int,
    rng: np.random.Generator,
    expect: Callable[..., Any] = Expect,
    means: F64 | None = None,
) -> int:
    """Find K(n) of every row without looking at all components; it stays with the shard. Returns the distances.

    `means` are those of the mixture in the columns of the rows, where it has other coordinates.
    """
    means = mixture.means if means is None else means
    n_distances = label_by_cells(shard, means, draw_cells(shard, means, rng)).n_distances
    for _ in range(2):
        probe = Probe(draw_cells(shard, mixture.means, rng), 4, n_candidates)  # more cells than when K(n) is renewed
        n_distances += int(shard.run(expect(mixture, probe)).n_distances)
    return n_distances


def with_members(shard: Shard, mixture: GaussianParameters, n_candidates: int) -> Truncated:
    """The mixture to be asked with the K(n) of a shard, found by way of cells that a fixed seed draws."""
    n_candidates = min(n_candidates, mixture.n_components)
    find_members(shard, mixture, n_candidates, np.random.default_rng(0))
    return Truncated(mixture, n_candidates)
