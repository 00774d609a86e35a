"""Where mixtures of factor analysers start: the principal components of cells, and what the noise of all cells shares.

Both come from E-steps with one component a row, so that statistics are those of cells.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from globular.model.coordinates import Coordinates
from globular.model.covariances import FAMILIES, CentralMoments, CovarianceLimits
from globular.model.gaussian import mixing_weights
from globular.model.low_rank import (
    LowRankParameters,
    LowRankStatistics,
    about_new_means,
    isotropic_factors,
    pooled_noise,
    symmetric,
)
from globular.model.statistics import F64
from globular.threads import single_threaded_blas

INDEPENDENT_ROWS = 3.0
"""Rows for each column, as it were, that say of the noise of all columns that it is independent: D² / 2 numbers are
learnt from N rows, and in few rows columns seem to have more to do with each other than they have."""
FAINT = 1e-3
"""Variance along a factor that a cell has no rows for, relative to the noise: EM cannot bring back one that is zero."""


@single_threaded_blas
def probing_directions(means: F64, bases: F64, coordinates: Coordinates | None = None) -> LowRankParameters:
    """A mixture whose directions V are orthonormal bases, (C, q, D), but for a factor: its E-step gives S V."""
    return replace(isotropic_factors(means, 1.0, bases.shape[1], coordinates), loadings=bases)


@single_threaded_blas
def power_step(mixture: LowRankParameters, found: LowRankStatistics) -> F64:
    """Orthonormal bases of S V, (C, q, D), closer to the principal directions of each component than V."""
    _, A = about_new_means(mixture, found)
    # a cell of few rows has fewer directions than are asked for: the others stay what they are
    faint = 1e-12 * np.sqrt(np.einsum("cqd,cqd->c", A, A))[:, None, None] + 1e-300
    bases, _ = np.linalg.qr((A + faint * mixture.directions).transpose(0, 2, 1))
    return np.ascontiguousarray(bases.transpose(0, 2, 1))


@single_threaded_blas
def principal_start(
    mixture: LowRankParameters, found: LowRankStatistics, limits: CovarianceLimits, noise_type: str
) -> LowRankParameters:
    """Probabilistic PCA of every cell within the span of the directions that its E-step had (`probing_directions`)."""
    variances, A = about_new_means(mixture, found)
    C, q, D = A.shape
    lengths = np.sqrt(np.einsum("cqd,cqd->cq", mixture.directions, mixture.directions))
    bases = mixture.directions / lengths[:, :, None]
    values, vectors = np.linalg.eigh(symmetric((A / lengths[:, :, None]) @ bases.transpose(0, 2, 1)))
    axes = vectors.transpose(0, 2, 1) @ bases  # of the variances `values`, (C, q, D)
    floor = float(np.mean(limits.reg_covar) + np.mean(limits.smallest))
    rest = np.maximum((variances.sum(axis=1) - values.sum(axis=1)) / max(1, D - q), floor)[:, None]
    loadings = axes * np.sqrt(np.maximum(values - rest, FAINT * rest))[:, :, None]
    residuals = variances - np.einsum("cqd,cqd->cd", loadings, loadings)
    noise = pooled_noise(residuals, np.broadcast_to(rest, (C, D)), found, limits, noise_type)
    weights, means = mixing_weights(found.counts, found.total_weight), mixture.means + found.shifts
    return replace(mixture, weights=weights, means=means, loadings=loadings, noise=noise)


@single_threaded_blas
def says_of_shared_noise(cells: LowRankParameters, found: LowRankStatistics, limits: CovarianceLimits) -> F64:
    """How much the scatter of every cell counts for what all of them share, (C,); Σ counts · these is one.

    Each is divided by its own mean variance, lest a few wide cells decide alone; all but constant cells have no say.
    """
    variances, _ = about_new_means(cells, found)
    floor, sizes = float(np.mean(limits.reg_covar) + np.mean(limits.smallest)), variances.mean(axis=1)
    says = np.where(sizes > floor, 1.0 / (sizes + floor), 0.0)
    return says / max(float(says @ found.counts), 1e-300)


def shared_coordinates(origin: F64, scatter: F64, n_rows: float, limits: CovarianceLimits) -> Coordinates:
    """Those in which noise of this covariance, of so many rows, is that of independent columns, within the limits."""
    scatter = scatter + INDEPENDENT_ROWS * len(origin) / n_rows * np.diag(np.diag(scatter))
    moments = CentralMoments(np.ones(1), np.zeros((1, len(origin))), scatter[None], np.ones(1, dtype=bool))
    return Coordinates.of_covariance(origin, FAMILIES["tied"].estimate(moments, scatter, limits))
