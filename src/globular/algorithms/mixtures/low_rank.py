"""Mixtures of factor analysers (Ghahramani & Hinton 1996) by truncated variational EM.

    repeat:  E-step  q(c | x) among the C′ components that a row keeps, K(n)        one pass; cells nominate new ones
             M-step  π, μ, then a step of EM for the loadings and noise of each     `model.low_rank`

Each part raises the free energy F = Σ w log Σ_{c ∈ K(n)} p(c, x), or leaves it: a better component takes the place of a
worse one in K(n), never the other way round (Prop. 1 of Forster & Lücke 2018); the M-step is one of generalised EM.
With C′ = C every row looks at all components, and this is exact EM.

*The start.* K-means labels the rows; then every cell gets the principal components of its rows, by the E-step itself:
with one component a row and orthonormal directions its statistics are S V, a step of orthogonal iteration for all cells
at once. Cells with fewer rows than factors have faint ones beyond those that their rows span.

*Correlated noise.* What the columns of all cells have to do with each other, T of `model.coordinates`, is taken from
the scatter within cells first, and from what factors leave of it later, where F is then higher: all else is in these
coordinates, and EM there is EM.
Deviation: Gales (1999), who ties a matrix in this way, learns it along with the rest, from D × D statistics of every
component, or of every column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from globular.algorithms.kmeans.cells import draw_cells, label_by_cells
from globular.algorithms.kmeans.subspace import POWER_STEPS
from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.low_rank_moves import LowRankProspects
from globular.algorithms.mixtures.moves import ROUGH_TOL
from globular.algorithms.mixtures.pipeline import STEPS_OF_MOVES, STEPS_PER_COMPONENT
from globular.algorithms.mixtures.probing import NO_GRAPH, SearchByProbing, find_members
from globular.algorithms.mixtures.variational import em_among_some
from globular.algorithms.search import SHORTEST, search
from globular.algorithms.steps import Step, numbered_from
from globular.model.coordinates import Coordinates
from globular.model.covariances import CovarianceLimits
from globular.model.low_rank import (
    INDEPENDENT_ROWS,
    LowRankParameters,
    LowRankStatistics,
    in_shared_noise,
    isotropic_factors,
    kept_of_correlations,
    left_of_scatter,
    low_rank_m_step,
    power_step,
    principal_start,
    probing_directions,
)
from globular.model.statistics import F64
from globular.seam.among import ALL, Probe, Within
from globular.seam.mixture_passes import ExpectLowRank, ScatterWithin
from globular.seam.shard import Shard

EStep: TypeAlias = Callable[..., LowRankStatistics]
Steps: TypeAlias = Iterator[Step[LowRankParameters]]
OWN_CELL = Within()
"""A row looks at the component of its label alone."""
ROUND = 8
"""Most iterations before the shared noise is estimated again; larger = fewer estimates, later."""
STEPS_PER_TRIAL = 2
"""Iterations that a new estimate has to be ahead of the old one: on nine sets the second decides as the tenth does."""
LAST_GAIN = 0.05
"""Share of the largest gain that another estimate has to gain; larger = fewer estimates."""
MOST_MOVED = 100
"""Components up to which they are moved; larger = better starts of many, for up to half of the iterations."""
WORTH_MOVING = 1e-4
"""Nats a row that an exchange has to gain."""


def start_low_rank(
    shard: Shard,
    means: F64,
    n_factors: int,
    noise_type: str,
    rng: np.random.Generator,
    *,
    limits: CovarianceLimits,
    labelled: bool,
    correlated: bool = False,
) -> LowRankParameters:
    """Local PCA of the cells of `means`; `labelled` says that `shard.labels` belong to them already.

    If noise is `correlated`, the mixture is in coordinates of its own.
    """
    if not labelled:
        label_by_cells(shard, means, draw_cells(shard, means, rng))
    coordinates = find_coordinates(shard, means, limits) if correlated else None
    if coordinates is not None:
        means, limits = coordinates.to(means), coordinates.limits(limits)
    # the same for all cells, which turn them their own way
    drawn, _ = np.linalg.qr(rng.normal(size=(means.shape[1], n_factors)))
    mixture = probing_directions(means, np.zeros_like(means)[:, None, :] + drawn.T, coordinates)
    for _ in range(POWER_STEPS):
        bases = power_step(mixture, shard.run(ExpectLowRank(mixture, OWN_CELL)))
        mixture = probing_directions(means, bases, coordinates)
    return principal_start(mixture, shard.run(ExpectLowRank(mixture, OWN_CELL)), limits, noise_type)


def find_coordinates(shard: Shard, means: F64, limits: CovarianceLimits) -> Coordinates:
    """Where the noise of cells, as `shard.labels` has them, is that of independent columns on average."""
    cells = isotropic_factors(means, 1.0, 1)
    cells = low_rank_m_step(cells, shard.run(ExpectLowRank(cells, OWN_CELL)), limits, "spherical")
    kept = 1.0 / (1.0 + INDEPENDENT_ROWS * shard.n_columns / shard.total_weight)
    found = with_noise_anew(shard, cells, limits, kept).coordinates
    assert found is not None
    return found


class LowRankEM:
    """EM of one mixture. The objective is F before the M-step; without `reg_covar` it never falls in `steps`."""

    def __init__(
        self, shard: Shard, noise_type: str, options: VariationalOptions, rng: np.random.Generator,
        limits: CovarianceLimits,
    ) -> None:  # fmt: skip
        self._shard, self._options, self._limits, self._rng = shard, options, limits, rng
        self._noise_type, self._most = noise_type, ROUGH_TOL * shard.total_weight / LAST_GAIN
        self._search_anew()

    def _stay(self, mixture: LowRankParameters, *, idle: bool = False) -> LowRankStatistics:
        """An E-step that leaves K(n) as it is."""
        few = self._options.C_prime < mixture.n_components
        return self._shard.run(ExpectLowRank(mixture, Probe(None, 0, self._options.C_prime) if few else ALL))

    def _search_anew(self) -> None:
        """E-steps from now on renew K(n) in the first of them, and in others when it is due."""
        self._search = SearchByProbing(self._shard, NO_GRAPH, self._options, self._rng, ExpectLowRank)

    def _e_step(self, mixture: LowRankParameters, *, idle: bool) -> LowRankStatistics:
        few = self._options.C_prime < mixture.n_components
        return self._search.e_step(mixture, idle=idle) if few else self._stay(mixture)

    def _update(self, mixture: LowRankParameters, found: LowRankStatistics) -> LowRankParameters:
        limits = self._limits if mixture.coordinates is None else mixture.coordinates.limits(self._limits)
        return low_rank_m_step(mixture, found, limits, self._noise_type)

    def steps(self, start: LowRankParameters, e_step: EStep | None = None, **changes: Any) -> Steps:
        """Plain EM with these changes of the options."""
        options = replace(self._options, **changes)
        return em_among_some(self._shard, start, e_step or self._e_step, self._update, options)

    def improved(self, start: LowRankParameters, *, moves: bool) -> Steps:
        """EM to its end, with shared noise learnt and components moved on the way; steps hold the best mixture."""
        self.best, self._rise = Step(0, -np.inf, 0, None, start), np.inf
        yield from self._learn_noise()
        if moves and 3 <= start.n_components <= MOST_MOVED:
            yield from self._roughly(self._options.max_iter)
            before = self.best.objective
            yield from self._move()
            if self.best.objective > before:
                yield from self._learn_noise()
        n = self.best.iteration
        yield from numbered_from(self.steps(self.best.model, max_iter=self._options.max_iter - n), n)

    def _n_left(self) -> int:
        """Iterations that may be spent before the last ones."""
        return self._options.max_iter - self.best.iteration - 1

    def _take(self, step: Step[LowRankParameters], *, better: bool = True) -> Step[LowRankParameters]:
        """Count a step, and keep its mixture if it is better."""
        kept, n = step if better else self.best, self.best.iteration + 1
        self.best = replace(kept, iteration=n, n_distances=step.n_distances, stopped="")
        return self.best

    def _roughly(self, at_most: int) -> Steps:
        """EM while it gains much."""
        at_most = min(at_most, self._n_left())
        tol = max(self._options.tol, ROUGH_TOL)
        for step in self.steps(self.best.model, max_iter=at_most, tol=tol, patience=1) if at_most > 0 else ():
            self._rise = step.objective - self.best.objective
            yield self._take(step)

    def _learn_noise(self) -> Steps:
        """A few iterations, then the shared noise anew, for as long as that is better."""
        learns = self.best.model.coordinates is not None
        while learns and self._n_left() >= ROUND + STEPS_PER_TRIAL:
            yield from self._roughly(ROUND)
            before = self.best.objective + STEPS_PER_TRIAL * self._rise
            trial = with_noise_anew(self._shard, self.best.model, self._limits)
            for step in self.steps(trial, self._stay, max_iter=STEPS_PER_TRIAL, tol=0.0):
                gain = step.objective - before
                yield self._take(step, better=gain > 0.0)
            learns, self._most = gain > LAST_GAIN * self._most, max(gain, self._most)

    def _move(self) -> Steps:
        """Exchanges of components."""
        n_steps = STEPS_OF_MOVES + STEPS_PER_COMPONENT * self.best.model.n_components
        n_steps = min(n_steps, self._n_left() // 2, max(SHORTEST, 3 * self.best.iteration // 2))

        def draw(mixture: LowRankParameters) -> LowRankProspects:
            mixture = mixture.as_numpy()  # few components, whose arithmetic is the host's
            return LowRankProspects(self._shard, mixture, self._e_step(mixture, idle=True), self._update)

        def iterate(mixture: LowRankParameters, n: int) -> Steps:
            self._search_anew()
            return self.steps(mixture, max_iter=n, tol=0.0)

        for step in search(self.best, draw, iterate, n_steps, WORTH_MOVING * self._shard.total_weight):
            yield self._take(step)
        self._search_anew()


def with_noise_anew(
    shard: Shard, mixture: LowRankParameters, limits: CovarianceLimits, kept: float | None = None
) -> LowRankParameters:
    """The mixture with the shared noise that its factors leave of the rows, each in the component of its label."""
    found = shard.run(ExpectLowRank(mixture, OWN_CELL))
    says, explained = left_of_scatter(mixture, found)
    means = replace(mixture, means=mixture.means + found.shifts).in_columns().means
    scatter = shard.run(ScatterWithin(means, says)) - explained
    kept = kept_of_correlations(scatter, shard.total_weight, limits) if kept is None else kept
    return in_shared_noise(mixture, shard.column_moments()[0], scatter, kept, limits)


def find_low_rank_members(
    shard: Shard, mixture: LowRankParameters, n_candidates: int, rng: np.random.Generator
) -> None:
    """Find K(n) of every row without looking at all components; it stays with the shard."""
    means = None if mixture.coordinates is None else mixture.coordinates.back(mixture.means)
    find_members(shard, mixture, n_candidates, rng, ExpectLowRank, means)
