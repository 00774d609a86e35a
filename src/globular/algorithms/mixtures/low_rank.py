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

from collections.abc import Iterator
from functools import partial

import numpy as np

from globular.algorithms.kmeans.cells import draw_cells, label_by_cells
from globular.algorithms.kmeans.subspace import POWER_STEPS
from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.probing import NO_GRAPH, SearchByProbing, find_members
from globular.algorithms.mixtures.variational import em_among_some
from globular.algorithms.steps import Step
from globular.model.coordinates import Coordinates
from globular.model.covariances import CovarianceLimits
from globular.model.low_rank import (
    LowRankParameters,
    isotropic_factors,
    low_rank_m_step,
    power_step,
    principal_start,
    probing_directions,
    says_of_shared_noise,
    shared_coordinates,
)
from globular.model.statistics import F64
from globular.seam.among import Probe
from globular.seam.mixture_passes import ExpectLowRank, ScatterWithin
from globular.seam.shard import Shard

OWN_CELL = Probe(None, 0, 1)
"""A row looks at the component of its label alone."""


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
) -> Iterator[Step[LowRankParameters]]:
    """EM from `start`; rows begin at `shard.labels` unless they look at all components.

    The objective of a step is F at the parameters before its M-step. Without `reg_covar` it never falls.
    """
    if start.coordinates is not None:
        limits = start.coordinates.limits(limits)
    update = partial(low_rank_m_step, limits=limits, noise_type=noise_type)
    search = SearchByProbing(shard, NO_GRAPH, options, rng, ExpectLowRank)
    few = options.C_prime < start.n_components
    e_step = search.e_step if few else lambda mixture, idle: shard.run(ExpectLowRank(mixture))
    return em_among_some(shard, start, e_step, update, options)


def find_low_rank_members(
    shard: Shard, mixture: LowRankParameters, n_candidates: int, rng: np.random.Generator
) -> None:
    """Find K(n) of every row without looking at all components; it stays with the shard."""
    means = None if mixture.coordinates is None else mixture.coordinates.back(mixture.means)
    find_members(shard, mixture, n_candidates, rng, ExpectLowRank, means)
