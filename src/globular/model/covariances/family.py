"""What every covariance family answers, and the limits that its M-step keeps.

Two guards keep covariances invertible. `reg_covar` is added to the diagonal as scikit-learn does; unless it is given it
is 1e-6, or that share of a column's variance where this is less: the variances of columns in tiny units are far below
1e-6, and components would all become as wide as that. And Σ − F stays
positive semi-definite, with F a fixed diagonal: a tiny share of the variance of each column, so that columns on very
different scales do not disturb each other. A fixed limit makes this the M-step under a constraint: the likelihood stays
monotone and finite even for components that sit on a single row. (For matrices that are close to the limit, to within
rounding times their condition number.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from globular.model.covariances.scatter import ScatterKind
from globular.model.statistics import F64

REG_COVAR = 1e-6  # what is added to variances of one and more, and the share that is added to smaller ones
RELATIVE_FLOOR = 1e-12  # smallest variance relative to that of the data, column by column
LEAST_VARIANCE = 1e-305  # smallest variance whose inverse is still a number
_ROUNDED = 1e-2  # by how much rounding may change a factor of a precision
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class CovarianceLimits:
    """What an M-step adds to variances, and what it never lets them fall below."""

    reg_covar: float | F64
    """The same for all columns, or of every column, (D,)."""
    smallest: F64
    """The diagonal of F, (D,); positive."""
    prior_rows: float = 0.0
    """Rows that every component of its own covariance counts beside its own, at its mean, with `prior_variances`."""
    prior_variances: F64 | None = None
    """(D,)."""

    @classmethod
    def for_data(
        cls,
        reg_covar: float | F64 | str,
        column_means: F64,
        column_variances: F64,
        relative_floor: float = RELATIVE_FLOOR,
    ) -> CovarianceLimits:
        """Limits for data with these moments; positive even if the data are constant and `reg_covar` is 0.

        "auto" for `reg_covar` is `REG_COVAR`, or less where variances are below one. A constant column counts as one
        of average variance.
        """
        rounding = np.square(4 * _EPS * column_means)
        typical = max(relative_floor * float(np.mean(column_variances)), 1e-30)
        constant = column_variances <= rounding
        floor = np.maximum(np.where(constant, typical, relative_floor * column_variances), rounding)
        if isinstance(reg_covar, str):
            scales = np.where(constant, np.mean(column_variances), column_variances)
            reg_covar = REG_COVAR * np.minimum(np.where(scales > 0, scales, 1.0), 1.0)
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
        return self.counts if self.filled.all() else np.where(self.filled, self.counts, 1.0)


class CovarianceFamily(ABC):
    """One `covariance_type`: what its parameters are, and all that others want to know about them.

    Covariances and precisions of a family have one shape, in scikit-learn's convention. Factors of precisions have the
    shape of an entry of the scatter, one for every component unless the family is tied. What is written here holds for
    variances; families with correlations say otherwise.
    """

    name: ClassVar[str]
    scatter: ClassVar[ScatterKind]
    """The second moment that the M-step needs."""
    tied: ClassVar[bool] = False
    """Whether all components have one covariance."""
    euclidean: ClassVar[bool] = False
    """Whether densities of equal weight sort components as plain distances do."""
    requirement: ClassVar[str] = "positive"
    """What an array has to be to hold covariances or precisions."""

    def shape(self, C: int, D: int) -> tuple[int, ...]:
        """Shape of the covariances."""
        entry = self.scatter.entry(D)
        return entry if self.tied else (C, *entry)

    def n_parameters(self, C: int, D: int) -> int:
        """Free parameters of the covariances."""
        return (1 if self.tied else C) * self.scatter.width(D)

    def least_rows(self, D: int) -> float:
        """Rows that a component needs: four for its mean, and as many again for every other parameter in a column."""
        return 0.0 if self.tied else 4.0 * (1.0 + self.n_parameters(1, D) / D)

    @abstractmethod
    def estimate(self, moments: CentralMoments, previous: F64, limits: CovarianceLimits) -> F64:
        """M-step: covariances of largest likelihood within the limits."""

    def isotropic(self, variance: float, C: int, D: int) -> F64:
        """σ² I for every component."""
        return np.broadcast_to(self.scatter.diagonal(np.full(D, variance)), self.shape(C, D)).copy()

    def factors(self, covariances: F64) -> F64:
        """Factors U of the precisions, U Uᵀ = Σ⁻¹, upper triangular where they are matrices."""
        return np.asarray(1.0 / np.sqrt(covariances))

    def precisions(self, factors: F64) -> F64:
        """Σ⁻¹ from its factors."""
        return np.asarray(np.square(factors))

    def inverse(self, precisions: F64) -> F64:
        """Covariances from precisions."""
        return np.asarray(1.0 / precisions)

    def is_positive(self, values: F64) -> bool:
        """Whether covariances or precisions meet the `requirement`."""
        return bool(np.all(values > 0))

    def survives(self, covariances: F64, dtype: np.dtype[Any]) -> bool:
        """Whether covariances are nearly the same, and positive, when they are rounded to another type."""
        with np.errstate(over="ignore", under="ignore"):
            rounded = covariances.astype(dtype).astype(np.float64)
        if not np.isfinite(rounded).all() or not self.is_positive(rounded):
            return False
        return np.allclose(self.factors(rounded), self.factors(covariances), rtol=_ROUNDED, atol=0.0)

    def half_log_determinants(self, factors: F64, C: int, D: int) -> F64:
        """½ log |Σ_c⁻¹|, (C,)."""
        stacked = self.scatter.stacked(factors, D)
        halves = np.log(stacked).sum(axis=1) * (D / stacked.shape[1])
        return np.full(C, halves) if self.tied else halves

    def spread(self, covariances: F64, component: int, noise: F64) -> F64:
        """Standard normal rows, given the covariance of a component."""
        return noise * np.sqrt(self.pick(covariances, component))

    def variances(self, covariances: F64, C: int, D: int) -> F64:
        """Variances of every component: (C, D), or (C, 1) where columns share one."""
        return self.scatter.diagonals(self.each(covariances, C, D))

    def matrices(self, covariances: F64, C: int, D: int) -> F64:
        """The covariance matrix of every component, (C, D, D)."""
        return np.broadcast_to(self.each(covariances, C, D), (C, D))[:, :, None] * np.eye(D)

    def each(self, values: F64, C: int, D: int) -> F64:
        """Parameters of every component, (C, 1), (C, D) or (C, D, D); a view where all have one."""
        return self.scatter.each(values, C, D)

    def pick(self, values: F64, components: Any) -> F64:
        """Parameters of some components, chosen by a number, a list or a slice."""
        return values if self.tied else values[components]
