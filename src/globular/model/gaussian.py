"""Gaussian mixtures: parameters, and their M-step from additive statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from globular.lazy import cached_property
from globular.model.covariances import FAMILIES, CentralMoments, CovarianceFamily, CovarianceLimits
from globular.model.covariances.scatter import CANCELLATION_LIMIT
from globular.model.noise import Noise
from globular.model.statistics import F64, I64, SoftStatistics

_LOG_2PI = math.log(2 * math.pi)
_WEIGHT_FLOOR = 10 * float(np.finfo(np.float64).eps)


class Components:
    """Base of all mixtures: their components have weights, (C,), and means, (C, D)."""

    weights: F64
    means: F64

    @property
    def n_components(self) -> int:
        return int(self.means.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.means.shape[1])

    @property
    def log_shares(self) -> F64:
        """log π, (C,); −∞ for a component that is not there."""
        with np.errstate(divide="ignore"):
            return cast(F64, np.log(self.weights))


def draw_by_component(
    shares: F64, n_samples: int, random: np.random.RandomState, draw: Callable[[int, int], F64]
) -> tuple[F64, I64]:
    """Rows grouped by component, `draw(c, n)` of each, and their components.

    Shares may be off one by what float32 rounds.
    """
    counts = random.multinomial(n_samples, shares / shares.sum())
    rows = [draw(c, count) for c, count in enumerate(counts) if count]
    return np.vstack(rows), np.repeat(np.arange(len(counts), dtype=np.int64), counts)


@dataclass(frozen=True, eq=False)
class GaussianParameters(Components):
    """p(x) = Σ_c π_c N(x; μ_c, Σ_c), and a constant where there is noise. Arrays are float64, not to be written to."""

    weights: F64
    """π, (C,); sums to one, together with the weight of the noise."""
    means: F64
    """μ, (C, D)."""
    covariances: F64
    """Σ, in the shape of the family."""
    covariance_type: str
    noise: Noise | None = field(default=None, kw_only=True)
    """A component for rows that belong to no other."""

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
        return self.log_shares + (half - 0.5 * _LOG_2PI * self.n_features)

    @cached_property
    def offset(self) -> F64:
        """Mean of the components, (D,): what passes subtract from rows so that large offsets do not cancel."""
        mean = self.weights @ self.means
        return mean if self.noise is None else mean / (self.weights.sum() or 1.0)

    @property
    def background(self) -> float:
        """log p(noise, x), the same for all rows; −∞ where there is no noise."""
        return -np.inf if self.noise is None else self.noise.log_joint

    def each(self, values: F64) -> F64:
        """Covariances, precisions or factors of every component, (C, 1), (C, D) or (C, D, D)."""
        return self.family.each(values, *self.means.shape)

    def variances(self) -> F64:
        """Variances of every component, (C, D), or (C, 1) where columns share one."""
        return self.family.variances(self.covariances, *self.means.shape)

    def copy(self) -> GaussianParameters:
        """The same in arrays of its own."""
        arrays = self.weights.copy(), self.means.copy(), self.covariances.copy()
        return GaussianParameters(*arrays, self.covariance_type, noise=self.noise)

    def holds(self, weights: Any, means: Any, covariances: Any, noise: Noise | None) -> bool:
        """Whether its arrays are these, number by number."""
        return (
            self.background == (-np.inf if noise is None else noise.log_joint)
            and np.array_equal(self.weights, weights)
            and np.array_equal(self.means, means)
            and np.array_equal(self.covariances, covariances)
        )

    def as_numpy(self) -> GaussianParameters:
        """The same with arrays of NumPy for parameters, wherever these lie; itself where they are."""
        if all(isinstance(each, np.ndarray) for each in (self.weights, self.means, self.covariances)):
            return self
        weights, means, covariances = map(np.asarray, (self.weights, self.means, self.covariances))
        return GaussianParameters(weights, means, covariances, self.covariance_type, noise=self.noise)

    def without_noise(self) -> GaussianParameters:
        """The components alone, as of rows that are known to be no noise."""
        return self if self.noise is None else replace(self, weights=self.weights / self.weights.sum(), noise=None)

    def pick(self, components: slice | list[int]) -> GaussianParameters:
        """Some of the components, their weights as they are, without noise."""
        covariances = self.family.pick(self.covariances, components)
        return GaussianParameters(self.weights[components], self.means[components], covariances, self.covariance_type)

    def n_parameters(self, *, learned_weights: bool) -> int:
        """Free parameters, for information criteria."""
        C, D = self.means.shape
        n_weights = C - 1 if learned_weights else 0
        return self.family.n_parameters(C, D) + C * D + n_weights + (self.noise is not None)

    def sample(self, n_samples: int, random: np.random.RandomState) -> tuple[F64, I64]:
        """Draw rows, grouped by component, and their components; noise comes last, as component −1."""
        noise = self.noise

        def draw(c: int, n: int) -> F64:
            if noise is not None and c == self.n_components:
                return noise.sample(n, random)
            return self.means[c] + self.family.spread(self.covariances, c, random.standard_normal((n, self.n_features)))

        shares = self.weights if noise is None else np.append(self.weights, noise.weight)
        rows, components = draw_by_component(shares, n_samples, random, draw)
        return rows, np.where(components < self.n_components, components, -1)


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

    A component without weight keeps its mean and covariance. What no component holds is noise, where there is any.
    """
    counts, filled, shifts = statistics.counts, statistics.filled, statistics.shifts
    moments = with_prior_rows(CentralMoments(counts, shifts, statistics.scatter, filled), mixture.family, limits)
    covariances = mixture.family.estimate(moments, mixture.covariances, limits)
    weights = mixing_weights(counts, statistics.total_weight, learned=learned_weights)
    noise = mixture.noise
    if noise is not None:
        total = statistics.total_weight
        left = max(total - float(counts.sum()), _WEIGHT_FLOOR * min(1.0, total)) / total
        noise = noise.of_weight(min(left, 1.0 - _WEIGHT_FLOOR))
        weights = weights * (1.0 - noise.weight)
    return GaussianParameters(weights, mixture.means + shifts, covariances, mixture.covariance_type, noise=noise)


def log_prior(mixture: GaussianParameters, limits: CovarianceLimits) -> float:
    """−½ r Σ_c (log |Σ_c| + tr Σ_c⁻¹ S₀) with the r rows of covariance S₀ of the prior, an inverse Wishart density."""
    family, rows, variances = mixture.family, limits.prior_rows, limits.prior_variances
    if family.tied or not rows or variances is None:
        return 0.0
    mixture = mixture.as_numpy()
    halves = family.half_log_determinants(mixture.factors, *mixture.means.shape)
    diagonals = family.scatter.diagonals(mixture.each(mixture.precisions))
    return rows * float((halves - 0.5 * (diagonals * variances).sum(axis=1)).sum())


def with_prior_rows(moments: CentralMoments, family: CovarianceFamily, limits: CovarianceLimits) -> CentralMoments:
    """The moments with the rows of the prior among them, which lie about the new means."""
    rows, variances = limits.prior_rows, limits.prior_variances
    if family.tied or not rows or variances is None:
        return moments
    kind = family.scatter
    own = kind.from_squares(variances[None]) if kind.separable else np.diag(variances)
    more = rows * own + kind.outer(np.full(len(moments.counts), rows), moments.shifts)
    return replace(moments, counts=moments.counts + rows, scatter=moments.scatter + more)


def mixing_weights(counts: F64, total_weight: float, *, learned: bool = True) -> F64:
    """Shares of the components; as in scikit-learn a weight never reaches zero, so that its logarithm exists."""
    if not learned:
        return np.full(len(counts), 1.0 / len(counts))
    weights = counts + _WEIGHT_FLOOR * min(1.0, total_weight)
    return weights / weights.sum()


def entropy_of(mixture: GaussianParameters, statistics: SoftStatistics) -> float:
    """−Σ w Σ_c q log q of the responsibilities of an E-step, from what it adds up.

    It is Σ w log p(x) − Σ w q log p(c, x), and the second sum is linear in the counts and second moments.
    """
    squares = (mixture.family.scatter.stacked(mixture.precisions, mixture.n_features) * statistics.scatter).sum()
    present = statistics.counts > 0
    joint = statistics.counts[present] @ mixture.log_constants[present] - 0.5 * float(squares)
    held = statistics.total_weight - float(statistics.counts.sum())
    if mixture.noise is not None and held > 0:
        joint += held * mixture.background
    return max(0.0, statistics.log_likelihood - float(joint))


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """How the rows lie about their mean: E-steps of components that share a covariance need no quadratic form with it.

    About an offset near the mean of the rows, log π_c N(x; μ_c, Σ) = x·Σ⁻¹μ_c + a_c − ½ xᵀΣ⁻¹x with a constant a_c of
    the component. The last term is the same for all components: no responsibility depends on it, and over all rows it
    adds up to ½ tr Σ⁻¹T, T the second moment of the rows. The M-step needs Σ_c Σ_n q (x − μ_c)(x − μ_c)ᵀ, which is T
    less what lies between the components. So T is taken once, and an iteration costs N·C·D, where other families with
    matrices take N·C·D².
    """

    offset: F64
    """The mean of the rows, (D,)."""
    scatter: F64
    """T, (1, 1) or (1, D, D)."""
    typical: F64
    """How far out a typical row is, (D,), or (1,) where columns share a variance."""

    @classmethod
    def of(cls, one: GaussianParameters, found: SoftStatistics) -> Spread:
        """From an E-step of one component about the mean of the rows."""
        variances = one.family.scatter.diagonals(found.scatter)[0] / found.total_weight
        return cls(one.means[0], found.scatter, np.sqrt(np.maximum(variances, 0.0)))

    def is_exact_for(self, mixture: GaussianParameters) -> bool:
        """Whether differences of large terms lose no more digits than elsewhere, for rows as far out as any mean."""
        kind = mixture.family.scatter
        reach = np.maximum(np.abs(mixture.means - self.offset).max(axis=0), self.typical)[None]
        precisions = np.abs(kind.stacked(mixture.precisions, mixture.n_features))
        return float(np.vdot(reach, kind.times(precisions, reach))) <= CANCELLATION_LIMIT

    def complete(self, mixture: GaussianParameters, found: SoftStatistics) -> SoftStatistics:
        """What an E-step without quadratic forms lacks: the second moment of all components together, (1, …), and the
        log-likelihood."""
        kind, shifts = mixture.family.scatter, found.shifts
        moved, apart = (kind.outer_sum(found.counts, by) for by in (shifts, mixture.means - self.offset + shifts))
        shared = float((kind.stacked(mixture.precisions, mixture.n_features) * self.scatter).sum())
        return replace(found, scatter=self.scatter - apart + moved, log_likelihood=found.log_likelihood - 0.5 * shared)


def linear_coefficients(mixture: GaussianParameters, offset: F64) -> F64:
    """Σ⁻¹μ_c and a_c of every component, (C, D + 1), for rows and means about the offset."""
    means = mixture.means - offset
    pulls = mixture.family.scatter.times(mixture.each(mixture.precisions), means)
    coefficients = np.empty((len(means), means.shape[1] + 1))
    coefficients[:, :-1] = pulls
    coefficients[:, -1] = mixture.log_constants - 0.5 * np.einsum("cd,cd->c", pulls, means)
    return coefficients
