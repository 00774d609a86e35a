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
the scatter within cells, and stays: all else is in these coordinates, and EM there is EM.
Deviation: Gales (1999), who ties a matrix in this way, learns it along with the rest, from D × D statistics of every
component, or of every column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from globular.algorithms.kmeans.cells import draw_cells, label_by_cells
from globular.algorithms.kmeans.subspace import POWER_STEPS
from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.moves import ROUGH_TOL
from globular.algorithms.mixtures.probing import NO_GRAPH, SearchByProbing, find_members
from globular.algorithms.mixtures.variational import em_among_some
from globular.algorithms.steps import Step, numbered_from
from globular.model.coordinates import Coordinates
from globular.model.covariances import CovarianceLimits
from globular.model.low_rank import (
    LowRankParameters,
    LowRankStatistics,
    in_shared_noise,
    isotropic_factors,
    left_of_scatter,
    low_rank_m_step,
    power_step,
    principal_start,
    probing_directions,
    says_of_shared_noise,
    shared_coordinates,
)
from globular.model.statistics import F64
from globular.seam.among import ALL, Probe, Within
from globular.seam.mixture_passes import ExpectLowRank, ScatterWithin
from globular.seam.shard import Shard

EStep = Callable[..., LowRankStatistics]
OWN_CELL = Within()
"""A row looks at the component of its label alone."""
ROUND = 8
"""Most iterations before the shared noise is estimated again; larger = fewer estimates, later."""
STEPS_PER_TRIAL = 2
"""Iterations that a new estimate has to be ahead of the old one: on all sets tried the second one decides as the tenth
does."""


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
    C, D = means.shape
    coordinates = find_coordinates(shard, means, limits) if correlated else None
    if coordinates is not None:
        means, limits = coordinates.to(means), coordinates.limits(limits)
    drawn, _ = np.linalg.qr(rng.normal(size=(D, n_factors)))  # the same for all cells, which turn them their own way
    mixture = probing_directions(means, np.repeat(np.ascontiguousarray(drawn.T)[None], C, axis=0), coordinates)
    for _ in range(POWER_STEPS):
        bases = power_step(mixture, shard.run(ExpectLowRank(mixture, OWN_CELL)))
        mixture = probing_directions(means, bases, coordinates)
    return principal_start(mixture, shard.run(ExpectLowRank(mixture, OWN_CELL)), limits, noise_type)


def find_coordinates(shard: Shard, means: F64, limits: CovarianceLimits) -> Coordinates:
    """Where the noise of cells, as `shard.labels` has them, is that of independent columns on average."""
    cells = isotropic_factors(means, 1.0, 1)
    found = shard.run(ExpectLowRank(cells, OWN_CELL))
    says = says_of_shared_noise(cells, found, limits)
    scatter = shard.run(ScatterWithin(means + found.shifts, says))
    return shared_coordinates(shard.column_moments()[0], scatter, shard.total_weight, limits)


def low_rank_em(
    shard: Shard,
    start: LowRankParameters,
    noise_type: str,
    options: VariationalOptions,
    rng: np.random.Generator,
    *,
    limits: CovarianceLimits,
    learns: bool = False,
) -> Iterator[Step[LowRankParameters]]:
    """EM from `start`; rows begin at `shard.labels` unless they look at all components.

    The objective of a step is F at the parameters before its M-step. Without `reg_covar` it never falls. If it `learns`,
    noise that is shared is estimated again every few iterations, until an estimate fails; steps hold the best mixture.
    """
    among = Probe(None, 0, options.C_prime) if options.C_prime < start.n_components else ALL
    search = SearchByProbing(shard, NO_GRAPH, options, rng, ExpectLowRank)

    def stay(mixture: LowRankParameters, *, idle: bool) -> LowRankStatistics:
        return shard.run(ExpectLowRank(mixture, among))

    def em(mixture: LowRankParameters, e_step: EStep, **changes: float) -> Iterator[Step[LowRankParameters]]:
        within = limits if mixture.coordinates is None else mixture.coordinates.limits(limits)
        update = partial(low_rank_m_step, limits=within, noise_type=noise_type)
        return em_among_some(shard, mixture, e_step, update, replace(options, **changes))

    e_step, n = stay if among is ALL else search.e_step, 0
    best = Step(0, -np.inf, 0, None, start)
    learns = learns and start.coordinates is not None
    while learns and n + ROUND + STEPS_PER_TRIAL < options.max_iter:
        for step in em(best.model, e_step, max_iter=ROUND, tol=max(options.tol, ROUGH_TOL), patience=1):
            rise, n = step.objective - best.objective, n + 1
            best = replace(step, iteration=n, stopped="")
            yield best
        goal = best.objective + STEPS_PER_TRIAL * rise + ROUGH_TOL * shard.total_weight
        for step in em(with_noise_anew(shard, best.model, limits), stay, max_iter=STEPS_PER_TRIAL, tol=0.0):
            learns, n = step.objective > goal, n + 1
            best = replace(step if learns else best, iteration=n, n_distances=step.n_distances, stopped="")
            yield best
    yield from numbered_from(em(best.model, e_step, max_iter=options.max_iter - n), n)


def with_noise_anew(shard: Shard, mixture: LowRankParameters, limits: CovarianceLimits) -> LowRankParameters:
    """The mixture with the shared noise that its factors leave of the rows, each in the component of its label."""
    found = shard.run(ExpectLowRank(mixture, OWN_CELL))
    says, explained = left_of_scatter(mixture, found)
    assert mixture.coordinates is not None
    means = mixture.coordinates.back(mixture.means + found.shifts)
    scatter = shard.run(ScatterWithin(means, says)) - explained
    return in_shared_noise(mixture, scatter, shard.total_weight, limits)


def find_low_rank_members(
    shard: Shard, mixture: LowRankParameters, n_candidates: int, rng: np.random.Generator
) -> None:
    """Find K(n) of every row without looking at all components; it stays with the shard."""
    means = None if mixture.coordinates is None else mixture.coordinates.back(mixture.means)
    find_members(shard, mixture, n_candidates, rng, ExpectLowRank, means)
