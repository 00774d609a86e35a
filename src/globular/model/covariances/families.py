"""The families: variances alone, or whole covariance matrices."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.linalg.lapack import dtrtri

from globular.model.covariances.family import CentralMoments, CovarianceFamily, CovarianceLimits
from globular.model.covariances.scatter import COLUMNS, NORM, OUTER, ScatterKind
from globular.model.statistics import F64
from globular.threads.blas import single_threaded_blas

_EPS = float(np.finfo(np.float64).eps)
_MOST_LIFTS = 30  # tries of a Cholesky factor, each with ten times the lift


class Spherical(CovarianceFamily):
    """σ_c² I: one variance per component."""

    name = "spherical"
    scatter: ClassVar[ScatterKind] = NORM

    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        moved = np.einsum("cd,cd->c", moments.shifts, moments.shifts)
        variances = (moments.scatter[:, 0] / moments.safe_counts - moved) / moments.shifts.shape[1]
        return np.where(
            moments.filled, _limited_variances(variances, np.mean(limits.reg_covar), limits.smallest.mean()), previous
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
        return np.asarray(_limited_variances(mean, np.mean(limits.reg_covar), limits.smallest.mean()))


class Diagonal(CovarianceFamily):
    """One variance per component and column."""

    name = "diag"
    scatter: ClassVar[ScatterKind] = COLUMNS

    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        variances = moments.scatter / moments.safe_counts[:, None] - moments.shifts**2
        return np.where(
            moments.filled[:, None], _limited_variances(variances, limits.reg_covar, limits.smallest), previous
        )


def _limited_variances(variances: F64, reg_covar: Any, smallest: F64) -> F64:
    """Variances within the limits; a difference of sums may be a rounding error below zero, and means zero."""
    return np.maximum(np.maximum(variances, 0.0) + reg_covar, smallest)


class _Matrices(CovarianceFamily):
    """What families with covariance matrices share."""

    scatter: ClassVar[ScatterKind] = OUTER
    requirement = "symmetric, positive-definite"

    def factors(self, covariances: F64) -> F64:
        lower = cholesky(covariances.reshape(-1, *covariances.shape[-2:]))
        return inverse_factors(lower).reshape(covariances.shape)

    def precisions(self, factors: F64) -> F64:
        return factors @ np.swapaxes(factors, -1, -2)

    def is_positive(self, values: F64) -> bool:
        return np.allclose(values, np.swapaxes(values, -1, -2)) and _positive(values)

    def inverse(self, precisions: F64) -> F64:
        covariances = np.linalg.inv(precisions)
        return (covariances + np.swapaxes(covariances, -1, -2)) / 2

    def half_log_determinants(self, factors: F64, C: int, D: int) -> F64:
        diagonals = np.diagonal(factors, axis1=-2, axis2=-1)
        return np.full(C, np.log(diagonals).sum(axis=-1))

    def spread(self, covariances: F64, component: int, noise: F64) -> F64:
        return noise @ np.linalg.cholesky(self.pick(covariances, component)).T

    def matrices(self, covariances: F64, C: int, D: int) -> F64:
        return self.each(covariances, C, D)


class Full(_Matrices):
    """A covariance matrix per component."""

    name = "full"

    @single_threaded_blas
    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        covariances = np.array(previous, dtype=np.float64)
        filled, shifts = moments.filled, moments.shifts[moments.filled]
        second = moments.scatter[filled] / moments.counts[filled, None, None]
        covariances[filled] = _limited(second - shifts[:, :, None] * shifts[:, None, :], limits)
        return covariances


class Tied(_Matrices):
    """One covariance matrix for all components."""

    name = "tied"
    tied = True

    @single_threaded_blas
    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        if not moments.filled.any():  # noise has all rows
            return previous
        moved = OUTER.outer_sum(moments.counts, moments.shifts)
        return _limited((moments.scatter.sum(axis=0) - moved) / moments.counts.sum(), limits)[0]


def _limited(covariances: F64, limits: CovarianceLimits) -> F64:
    """Each + reg_covar on the diagonal, eigenvalues relative to F lifted to one where that is needed."""
    limited = (covariances + np.swapaxes(covariances, -1, -2)) / 2 + limits.reg_covar * np.eye(covariances.shape[-1])
    floor = np.diag(limits.smallest)
    if not _positive(limited - floor):  # one of them is not; which one?
        for c, covariance in enumerate(limited):
            if not _positive(covariance - floor):
                limited[c] = _lifted(covariance, limits)
    return limited


def _lifted(covariance: F64, limits: CovarianceLimits) -> F64:
    """The closest matrix whose eigenvalues relative to F are at least one."""
    size = 2.0 ** np.frexp(limits.smallest.max())[1]  # a power of two, so that products of any size are as exact
    units = np.sqrt(np.outer(limits.smallest / size, limits.smallest / size)) * size
    values, vectors = np.linalg.eigh(covariance / units)
    floor = max(1.0, _EPS * len(values) * values[-1])
    for _ in range(_MOST_LIFTS):
        lifted = (vectors * np.maximum(values, floor)) @ vectors.T
        lifted = (lifted + lifted.T) / 2 * units
        if _positive(lifted):
            return np.asarray(lifted)
        floor *= 10  # a spread of eigenvalues beyond float64: narrow it until the matrix has a factor
    raise np.linalg.LinAlgError("a covariance is not finite")


def _positive(matrices: F64) -> bool:
    """Whether every one of the matrices has a Cholesky factor."""
    try:
        cholesky(matrices)
    except np.linalg.LinAlgError:
        return False
    return True


@single_threaded_blas  # on matrices this small threads only wait for each other
def cholesky(matrices: F64) -> F64:
    """Lower triangles; an error where one of the matrices has none."""
    return np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)


def inverse_factors(lower: F64) -> F64:
    """Upper triangles U, U Uᵀ the inverse of each L Lᵀ, (C, D, D)."""
    factors = np.empty_like(lower)
    for c, upper in enumerate(np.swapaxes(lower, 1, 2)):
        factors[c] = dtrtri(upper)[0]
    return factors


def least_pivot(D: int) -> float:
    """Share of a diagonal that pivots are at least, or they are rounding."""
    return _EPS * D


def with_factors(matrices: F64, least: F64) -> tuple[F64, F64]:
    """The matrices, their diagonals lifted by units of rounding where a Cholesky factor needs it; and the factors.

    `least` is what a diagonal is at least, but for rounding, (D,). Multiples of these matrices have factors, too.
    """
    try:
        lower = cholesky(matrices)
        if (_pivots(lower) >= least_pivot(matrices.shape[1]) * _diagonals(matrices)).all():
            return matrices, lower
    except np.linalg.LinAlgError:
        pass
    both = [_lifted_alone(each, least) for each in matrices]
    return np.stack([lifted for lifted, _ in both]), np.stack([factor for _, factor in both])


def _lifted_alone(matrix: F64, least: F64) -> tuple[F64, F64]:
    """The same of one matrix: what is lifted depends on no other."""
    rounding = least_pivot(len(matrix))
    diagonal = np.maximum(np.diagonal(matrix), least)
    lifted, share = matrix, 10.0 * rounding
    for _ in range(_MOST_LIFTS):
        try:
            lower = np.asarray(np.linalg.cholesky(lifted), dtype=np.float64)
            if np.all(_pivots(lower) >= rounding * np.diagonal(lifted)):
                return lifted, lower
        except np.linalg.LinAlgError:
            pass
        lifted = matrix + share * np.diag(diagonal)
        share *= 10.0
    raise np.linalg.LinAlgError("a scatter matrix is not finite")


def _pivots(lower: F64) -> F64:
    """What is left of the diagonal of a matrix, or of several, when the rows above are taken away."""
    return _diagonals(lower) ** 2


def _diagonals(matrices: F64) -> F64:
    return np.einsum("...dd->...d", matrices)
