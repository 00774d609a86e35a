"""Families without correlations."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from globular.model.covariances.family import CentralMoments, CovarianceFamily, CovarianceLimits
from globular.model.covariances.scatter import COLUMNS, NORM, ScatterKind
from globular.model.statistics import F64


class Spherical(CovarianceFamily):
    """σ_c² I: one variance per component."""

    name = "spherical"
    scatter: ClassVar[ScatterKind] = NORM

    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        moved = np.einsum("cd,cd->c", moments.shifts, moments.shifts)
        variances = (moments.scatter[:, 0] / moments.safe_counts - moved) / moments.shifts.shape[1]
        return np.where(
            moments.filled, _limited(variances, np.mean(limits.reg_covar), limits.smallest.mean()), previous
        )


class TiedSpherical(CovarianceFamily):
    """σ² I: one variance for all components, the model behind k-means."""

    name = "tied_spherical"
    scatter: ClassVar[ScatterKind] = NORM
    tied = True
    euclidean = True

    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        if not moments.filled.any():  # noise has all rows
            return previous
        moved = NORM.outer_sum(moments.counts, moments.shifts)
        mean = (moments.scatter.sum() - moved.sum()) / (moments.counts.sum() * moments.shifts.shape[1])
        return np.asarray(_limited(mean, np.mean(limits.reg_covar), limits.smallest.mean()))


class Diagonal(CovarianceFamily):
    """One variance per component and column."""

    name = "diag"
    scatter: ClassVar[ScatterKind] = COLUMNS

    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        variances = moments.scatter / moments.safe_counts[:, None] - moments.shifts**2
        return np.where(moments.filled[:, None], _limited(variances, limits.reg_covar, limits.smallest), previous)


def _limited(variances: F64, reg_covar: Any, smallest: F64) -> F64:
    """Variances within the limits; a difference of sums may be a rounding error below zero, and means zero."""
    return np.maximum(np.maximum(variances, 0.0) + reg_covar, smallest)
