"""Gaussian mixtures: parameters, and their M-step from additive statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from globular.model.covariances import FAMILIES, CentralMoments, CovarianceFamily, CovarianceLimits
from globular.model.statistics import F64, I64, SoftStatistics
from globular.threads import cached_property

_LOG_2PI = math.log(2 * math.pi)
_WEIGHT_FLOOR = 10 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class GaussianParameters:
    """p(x) = Σ_c π_c N(x; μ_c, Σ_c). Arrays are float64 and not to be written to."""

    weights: F64
    """π, (C,); sums to one."""
    means: F64
    """μ, (C, D)."""
    covariances: F64
    """Σ, in the shape of the family."""
    covariance_type: str

    def __post_init__(self) -> None:
        C, D = self.means.shape
        expected = self.family.shape(C, D)
        if self.covariances.shape != expected or self.weights.shape != (C,):
            raise ValueError(
                f"weights and covariances have shapes {self.weights.shape} and {self.covariances.shape}; "
                f"{C} {self.covariance_type} components in {D} columns need {(C,)} and {expected}"
            )

    @property
    def family(self) -> CovarianceFamily:
        return FAMILIES[self.covariance_type]

    @property
    def n_components(self) -> int:
        return int(self.means.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.means.shape[1])

    @cached_property
    def factors(self) -> F64:
        """Factors U of the precisions, U Uᵀ = Σ⁻¹."""
        return self.family.factors(self.covariances)

    @cached_property
    def precisions(self) -> F64:
        """Σ⁻¹; the shape of the covariances."""
        return self.family.precisions(self.factors)

    @cached_property
    def log_constants(self) -> F64:
        """log π_c − ½ log |2π Σ_c|, (C,): log p(c, x) is this minus half the Mahalanobis distance squared."""
        half = self.family.half_log_determinants(self.factors, *self.means.shape)
        half = half - 0.5 * _LOG_2PI * self.n_features
        if self.weights.min() > 0.0:
            return np.log(self.weights) + half
        with np.errstate(divide="ignore"):  # a weight of zero is a component that is not there
            return np.log(self.weights) + half

    @cached_property
    def offset(self) -> F64:
        """Mean of the mixture, (D,): what passes subtract from rows so that large offsets do not cancel."""
        return self.weights @ self.means

    def each(self, values: F64) -> F64:
        """Covariances, precisions or factors of every component, (C, 1), (C, D) or (C, D, D)."""
        return self.family.each(values, *self.means.shape)

    def variances(self) -> F64:
        """Of every component, (C, D), or (C, 1) where columns share one."""
        return self.family.variances(self.covariances, *self.means.shape)

    def copy(self) -> GaussianParameters:
        """The same in arrays of its own."""
        return GaussianParameters(self.weights.copy(), self.means.copy(), self.covariances.copy(), self.covariance_type)

    def holds(self, weights: Any, means: Any, covariances: Any) -> bool:
        """Whether its arrays are these, number by number."""
        return (
            np.array_equal(self.weights, weights)
            and np.array_equal(self.means, means)
            and np.array_equal(self.covariances, covariances)
        )

    def as_numpy(self) -> GaussianParameters:
        """The same with arrays of NumPy for parameters, wherever these lie; itself where they are."""
        if all(isinstance(each, np.ndarray) for each in (self.weights, self.means, self.covariances)):
            return self
        weights, means, covariances = map(np.asarray, (self.weights, self.means, self.covariances))
        return GaussianParameters(weights, means, covariances, self.covariance_type)

    def pick(self, components: slice | list[int]) -> GaussianParameters:
        """Some of the components, their weights as they are."""
        covariances = self.family.pick(self.covariances, components)
        return GaussianParameters(self.weights[components], self.means[components], covariances, self.covariance_type)

    def n_parameters(self, *, learned_weights: bool) -> int:
        """Free parameters, for information criteria."""
        C, D = self.means.shape
        return self.family.n_parameters(C, D) + C * D + (C - 1 if learned_weights else 0)

    def sample(self, n_samples: int, random: np.random.RandomState) -> tuple[F64, I64]:
        """Draw rows, grouped by component, and their components."""
        counts = random.multinomial(n_samples, self.weights)
        rows = [
            self.means[c] + self.family.spread(self.covariances, c, random.standard_normal((count, self.n_features)))
            for c, count in enumerate(counts)
            if count
        ]
        return np.vstack(rows), np.repeat(np.arange(self.n_components, dtype=np.int64), counts)


def isotropic_mixture(means: F64, variance: float, covariance_type: str) -> GaussianParameters:
    """Equal weights and σ² I around the given means, as a mixture of the given family."""
    C, D = means.shape
    covariances = FAMILIES[covariance_type].isotropic(variance, C, D)
    return GaussianParameters(np.full(C, 1.0 / C), means, covariances, covariance_type)


def about_the_mean(mean: F64, variance: F64, covariance_type: str) -> GaussianParameters:
    """One component for data with these moments of the columns, as wide as an average column."""
    return isotropic_mixture(mean[None, :], max(float(variance.mean()), 1e-30), covariance_type)


def m_step(
    mixture: GaussianParameters, statistics: SoftStatistics, limits: CovarianceLimits, *, learned_weights: bool = True
) -> GaussianParameters:
    """Parameters of largest expected log-likelihood, from the sums taken about the means of `mixture`.

    A component without weight keeps its mean and covariance.
    """
    counts, filled, shifts = statistics.counts, statistics.filled, statistics.shifts
    moments = CentralMoments(counts, shifts, statistics.scatter, filled)
    covariances = mixture.family.estimate(moments, mixture.covariances, limits)
    weights = mixing_weights(counts, statistics.total_weight, learned=learned_weights)
    return GaussianParameters(weights, mixture.means + shifts, covariances, mixture.covariance_type)


def mixing_weights(counts: F64, total_weight: float, *, learned: bool) -> F64:
    """π from the weight of the rows of every component, or equal ones."""
    if not learned:
        return np.full(len(counts), 1.0 / len(counts))
    # As in scikit-learn a weight never reaches zero, so that its logarithm exists.
    weights = counts + _WEIGHT_FLOOR * min(1.0, total_weight)
    return weights / weights.sum()
