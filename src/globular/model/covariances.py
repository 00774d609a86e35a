"""Covariance families of Gaussian mixtures: everything about a `covariance_type`, in one class each.

A family turns second moments into covariances (M-step), covariances into precision factors, and knows its number of
parameters and how to draw from it. Nothing else in the library asks which family it has: code that needs to differ
looks it up in `FAMILIES`, and passes over the data in a table keyed by `scatter`, the second moment a family needs.

Two guards keep covariances invertible. `reg_covar` is added to the diagonal as scikit-learn does. And Σ − F stays
positive semi-definite, with F a fixed diagonal: a tiny share of the variance of each column, so that columns on very
different scales do not disturb each other. A fixed limit makes this the M-step under a constraint: the likelihood stays
monotone and finite even for components that sit on a single row. (For matrices that are close to the limit, to within
rounding times their condition number.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtri

from globular.model.statistics import F64

ScatterKind = Literal["norm", "columns", "outer"]

RELATIVE_FLOOR = 1e-12
"""Smallest variance relative to that of the data, column by column."""
LEAST_VARIANCE = 1e-305
"""Smallest variance whose inverse is still a number."""
_EPS = float(np.finfo(np.float64).eps)
_MOST_LIFTS = 30
"""Tries of a Cholesky factor, each with ten times the smallest eigenvalue."""


@dataclass(frozen=True, slots=True)
class CovarianceLimits:
    """What an M-step adds to variances, and what it never lets them fall below."""

    reg_covar: float
    smallest: F64
    """The diagonal of F, (D,); positive."""

    @classmethod
    def for_data(
        cls, reg_covar: float, column_means: F64, column_variances: F64, relative_floor: float = RELATIVE_FLOOR
    ) -> CovarianceLimits:
        """Limits for data with these moments; positive even if the data are constant and `reg_covar` is 0."""
        rounding = np.square(4 * _EPS * column_means)
        typical = max(relative_floor * float(np.mean(column_variances)), 1e-30)
        constant = column_variances <= rounding
        floor = np.maximum(np.where(constant, typical, relative_floor * column_variances), rounding)
        return cls(reg_covar, np.maximum(floor, LEAST_VARIANCE))


@dataclass(frozen=True, slots=True)
class CentralMoments:
    """Per component: Σ w q, how far the mean moves, and the second moment about the mean before it moved."""

    counts: F64
    shifts: F64
    scatter: F64
    filled: NDArray[np.bool_]
    """Components with any weight; the others keep their covariance."""

    @property
    def safe_counts(self) -> F64:
        return np.where(self.filled, self.counts, 1.0)


class CovarianceFamily(ABC):
    """One `covariance_type`. Arrays of covariances, precisions and factors of a family have one shape."""

    name: ClassVar[str]
    scatter: ClassVar[ScatterKind]

    @abstractmethod
    def shape(self, C: int, D: int) -> tuple[int, ...]:
        """Shape of the covariances."""

    @abstractmethod
    def n_parameters(self, C: int, D: int) -> int:
        """Free parameters of the covariances."""

    @abstractmethod
    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        """M-step: covariances of largest likelihood within the limits."""

    def isotropic(self, variance: float, C: int, D: int) -> F64:
        """σ² I for every component."""
        return np.full(self.shape(C, D), variance)

    def factors(self, covariances: F64) -> F64:
        """Factors U of the precisions, U Uᵀ = Σ⁻¹, upper triangular where they are matrices."""
        return np.asarray(1.0 / np.sqrt(covariances))

    def precisions(self, factors: F64) -> F64:
        """Σ⁻¹ from its factors."""
        return np.asarray(np.square(factors))

    def from_precisions(self, precisions: F64) -> F64:
        """Covariances from precisions; ValueError unless they are positive (definite)."""
        if not np.all(precisions > 0):
            raise ValueError(f"precisions_init must be positive for covariance_type={self.name!r}")
        return np.asarray(1.0 / precisions)

    @abstractmethod
    def half_log_determinants(self, factors: F64, C: int, D: int) -> F64:
        """½ log |Σ_c⁻¹|, (C,)."""

    @abstractmethod
    def spread(self, covariances: F64, component: int, noise: F64) -> F64:
        """Standard normal rows, given the covariance of a component."""


class Spherical(CovarianceFamily):
    """σ_c² I: one variance per component."""

    name = "spherical"
    scatter: ClassVar[ScatterKind] = "norm"

    def shape(self, C: int, D: int) -> tuple[int, ...]:
        return (C,)

    def n_parameters(self, C: int, D: int) -> int:
        return C

    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        moved = np.einsum("cd,cd->c", moments.shifts, moments.shifts)
        variances = (moments.scatter / moments.safe_counts - moved) / moments.shifts.shape[1]
        return np.where(moments.filled, _limited(variances, limits.reg_covar, limits.smallest.mean()), previous)

    def half_log_determinants(self, factors: F64, C: int, D: int) -> F64:
        return D * np.log(factors)

    def spread(self, covariances: F64, component: int, noise: F64) -> F64:
        return noise * np.sqrt(covariances[component])


class TiedSpherical(CovarianceFamily):
    """σ² I: one variance for all components, the model behind k-means."""

    name = "tied_spherical"
    scatter: ClassVar[ScatterKind] = "norm"

    def shape(self, C: int, D: int) -> tuple[int, ...]:
        return ()

    def n_parameters(self, C: int, D: int) -> int:
        return 1

    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        moved = moments.counts * np.einsum("cd,cd->c", moments.shifts, moments.shifts)
        weight = moments.counts.sum() * moments.shifts.shape[1]
        return np.asarray(_limited((moments.scatter - moved).sum() / weight, limits.reg_covar, limits.smallest.mean()))

    def half_log_determinants(self, factors: F64, C: int, D: int) -> F64:
        return np.full(C, D * np.log(factors))

    def spread(self, covariances: F64, component: int, noise: F64) -> F64:
        return noise * np.sqrt(covariances)


class Diagonal(CovarianceFamily):
    """One variance per component and column."""

    name = "diag"
    scatter: ClassVar[ScatterKind] = "columns"

    def shape(self, C: int, D: int) -> tuple[int, ...]:
        return (C, D)

    def n_parameters(self, C: int, D: int) -> int:
        return C * D

    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        variances = moments.scatter / moments.safe_counts[:, None] - moments.shifts**2
        return np.where(moments.filled[:, None], _limited(variances, limits.reg_covar, limits.smallest), previous)

    def half_log_determinants(self, factors: F64, C: int, D: int) -> F64:
        return np.log(factors).sum(axis=1)

    def spread(self, covariances: F64, component: int, noise: F64) -> F64:
        return noise * np.sqrt(covariances[component])


class _Matrices(CovarianceFamily):
    """What families with whole covariance matrices share."""

    scatter: ClassVar[ScatterKind] = "outer"

    def isotropic(self, variance: float, C: int, D: int) -> F64:
        return np.broadcast_to(variance * np.eye(D), self.shape(C, D)).copy()

    def factors(self, covariances: F64) -> F64:
        D = covariances.shape[-1]
        lower = np.linalg.cholesky(covariances).reshape(-1, D, D)
        # the transpose of a matrix in C order is the same memory in Fortran order: no copy on the way to LAPACK
        inverse = [dtrtri(matrix.T)[0] for matrix in lower]
        return np.ascontiguousarray(np.stack(inverse).reshape(covariances.shape))

    def precisions(self, factors: F64) -> F64:
        return factors @ np.swapaxes(factors, -1, -2)

    def from_precisions(self, precisions: F64) -> F64:
        symmetric = np.allclose(precisions, np.swapaxes(precisions, -1, -2))
        if not symmetric or not np.all(np.linalg.eigvalsh(precisions) > 0):
            raise ValueError(
                f"precisions_init must be symmetric and positive definite for covariance_type={self.name!r}"
            )
        covariances = np.linalg.inv(precisions)
        return (covariances + np.swapaxes(covariances, -1, -2)) / 2

    def half_log_determinants(self, factors: F64, C: int, D: int) -> F64:
        diagonals = np.diagonal(factors, axis1=-2, axis2=-1)
        return np.broadcast_to(np.log(diagonals).sum(axis=-1), (C,)).copy()


class Full(_Matrices):
    """A covariance matrix per component."""

    name = "full"

    def shape(self, C: int, D: int) -> tuple[int, ...]:
        return (C, D, D)

    def n_parameters(self, C: int, D: int) -> int:
        return C * D * (D + 1) // 2

    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        covariances = np.array(previous, dtype=np.float64)
        filled, shifts = moments.filled, moments.shifts[moments.filled]
        second = moments.scatter[filled] / moments.counts[filled, None, None]
        covariances[filled] = _limited_matrices(second - shifts[:, :, None] * shifts[:, None, :], limits)
        return covariances

    def spread(self, covariances: F64, component: int, noise: F64) -> F64:
        return noise @ np.linalg.cholesky(covariances[component]).T


class Tied(_Matrices):
    """One covariance matrix for all components."""

    name = "tied"

    def shape(self, C: int, D: int) -> tuple[int, ...]:
        return (D, D)

    def n_parameters(self, C: int, D: int) -> int:
        return D * (D + 1) // 2

    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        moved = (moments.shifts * moments.counts[:, None]).T @ moments.shifts
        return _limited_matrices(((moments.scatter.sum(axis=0) - moved) / moments.counts.sum())[None], limits)[0]

    def spread(self, covariances: F64, component: int, noise: F64) -> F64:
        return noise @ np.linalg.cholesky(covariances).T


FAMILIES: dict[str, CovarianceFamily] = {
    family.name: family for family in (Full(), Tied(), Diagonal(), Spherical(), TiedSpherical())
}


def _limited(variances: F64, reg_covar: float, smallest: F64) -> F64:
    # A difference of sums can come out a rounding error below zero; it means zero.
    return np.maximum(np.maximum(variances, 0.0) + reg_covar, smallest)


def _limited_matrices(covariances: F64, limits: CovarianceLimits) -> F64:
    """Each + reg_covar I, eigenvalues relative to F lifted to one where that is needed."""
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
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return False
    return True
