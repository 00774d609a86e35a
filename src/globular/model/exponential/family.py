"""Mixtures whose log-densities are linear in the row: all but a factor that components share.

    log p(x | c) = θ_c · x − A_c + log h(x)       θ the natural parameters, A their log-normaliser, h the base measure

One product of the rows with all θ is an E-step, and the M-step is the mean of the rows: E[x | c] = Σ q x / Σ q, from
which a family makes its parameters. The prior is conjugate: `PseudoRows` count in every component like rows at
their mean, which keeps logarithms of zero, and components that shrink to a point, away.

A family is a class that says what its parameters are, which rows it takes, and how they are drawn. Here are also the
components of independent columns: zeros and ones (Bernoulli), or counts (Poisson).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from globular.model.gaussian import Components, draw_by_component, mixing_weights
from globular.model.observations import ExpectedMixture
from globular.model.statistics import F64, I64, Additive

SMALLEST_PROBABILITY, LARGEST_PROBABILITY = 1e-300, 1.0 - 2.0**-53
SMALLEST_RATE = 1e-300
LEAST = 1e-3
"""How close the mean of pseudo-rows may be to the limit of a column, by its scale."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearMixture:
    """log p(c, x) = x · slopes_c + constants_c, up to log h(x)."""

    slopes: F64
    """(C, D)."""
    constants: F64
    """(C,); −∞ for a component of weight zero."""


@dataclass(frozen=True, slots=True, eq=False)
class AsGaussians:
    """Gaussians that stand for linear components: log p(c, x) = log g(c, x) + slope · x + ½ curvature ‖x‖² + log h(x).

    What all components share is the same for every c, so g gives the same responsibilities.
    """

    mixture: ExpectedMixture
    """g, of weights that need not add up to one."""
    slope: F64
    """(D,)."""
    curvature: float

    def shared(self, total_weight: float, mean: F64, variance: F64) -> float:
        """Σ w (slope · x + ½ curvature ‖x‖²) over rows whose columns have these moments."""
        return total_weight * float(self.slope @ mean + 0.5 * self.curvature * (variance + mean**2).sum())


@dataclass(slots=True)
class LinearStatistics(Additive):
    """What an M-step needs of an E-step by linear functions of the rows."""

    counts: F64
    """Σ w q(c), (C,)."""
    sums: F64
    """Σ w q(c) x, (C, D)."""
    log_likelihood: float
    """Σ w log p(x), without the base measure."""
    total_weight: float
    n_distances: int


@dataclass(slots=True)
class Surveyed:
    """What a family has to know of all rows before a fit."""

    n_invalid: int
    """Entries, or rows, that it does not take."""
    log_base: float
    """Σ w log h(x)."""
    first: int = sys.maxsize
    """The number of the first row that it does not take; the largest number where it takes all."""

    def __add__(self, other: Self) -> Self:
        found = self.n_invalid + other.n_invalid, self.log_base + other.log_base, min(self.first, other.first)
        return type(self)(*found)


@dataclass(frozen=True, eq=False)
class ExponentialMixture(Components, ABC):
    """p(x) = Σ_c π_c p(x | c). Arrays are float64 and not to be written to."""

    weights: F64
    """π, (C,); sums to one."""
    means: F64
    """(C, D): E[x | c], or its direction."""

    unit_rows: ClassVar[bool] = False
    """Whether rows count as scaled to unit length."""
    by_roots: ClassVar[bool] = False
    """Whether square roots of the rows are what distances mean something for."""
    invalid: ClassVar[str]
    """What rows are that the family does not take, and what they shall be."""

    @classmethod
    @abstractmethod
    def of_means(cls, weights: F64, means: F64) -> Self:
        """The components of largest likelihood whose rows have these means, (C, D)."""

    @property
    @abstractmethod
    def slopes(self) -> F64:
        """θ, (C, D)."""

    @property
    @abstractmethod
    def log_normalisers(self) -> F64:
        """A, (C,)."""

    @classmethod
    def are_invalid(cls, values: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Which entries, other than zeros, the family does not take; None where it takes all."""
        return None

    @classmethod
    def log_base(cls, values: F64) -> F64 | None:
        """What every entry adds to log h(x); zeros add nothing. None where h = 1."""
        return None

    @classmethod
    @abstractmethod
    def prior_mean(cls, mean: F64) -> F64:
        """The mean of the pseudo-rows for data with this mean, (D,): inside of what means of rows can be."""

    @abstractmethod
    def draw(self, c: int, n: int, random: np.random.RandomState) -> F64:
        """n rows of a component."""

    @property
    def row_means(self) -> F64:
        """E[x | c], (C, D)."""
        return self.means

    @property
    def arrays(self) -> dict[str, F64]:
        """The parameters by the names that users know them by, without the underscore."""
        return {"weights": self.weights, "means": self.means}

    @property
    def linear(self) -> LinearMixture:
        """As passes take it."""
        return LinearMixture(self.slopes, self.log_shares - self.log_normalisers)

    @abstractmethod
    def as_gaussians(self) -> AsGaussians:
        """Gaussians with the same responsibilities, for passes that look at few components of a row."""

    def _about(self, mean: F64, variance: float) -> AsGaussians:
        """Gaussians of one variance; where that is the variance of the columns, they are the tangent at this mean."""
        variance, slope = max(variance, sys.float_info.min), self.weights @ self.slopes
        means = mean + variance * (self.slopes - slope)
        gaussians = self._gaussians("tied_spherical", means, np.asarray(variance))
        return AsGaussians(gaussians, slope - mean / variance, 1.0 / variance)

    def _gaussians(self, kind: str, means: F64, variances: F64, square: float = 0.0) -> ExpectedMixture:
        """Gaussians that differ from the components by what these share, for rows with this square of the length."""
        squares = (np.einsum("cd,cd->c", means, means) + square) / variances
        log_weights = self.linear.constants + 0.5 * (squares + self.n_features * np.log(2.0 * np.pi * variances))
        return ExpectedMixture.build(log_weights, means, variances, kind)

    def n_parameters(self, *, learned_weights: bool) -> int:
        """Free parameters, for information criteria."""
        return int(self.means.size) + (self.n_components - 1 if learned_weights else 0)

    def sample(self, n_samples: int, random: np.random.RandomState) -> tuple[F64, I64]:
        """Draw rows, grouped by component, and their components."""
        return draw_by_component(self.weights, n_samples, random, lambda c, n: self.draw(c, n, random))


@dataclass(frozen=True, slots=True, eq=False)
class PseudoRows:
    """The conjugate prior: every component has seen `weight` rows at `mean` already."""

    weight: float
    mean: F64

    def log_density(self, mixture: ExponentialMixture) -> float:
        """weight · Σ_c (θ_c · mean − A_c): the log prior, but for what no parameter changes."""
        return self.weight * float((mixture.slopes @ self.mean - mixture.log_normalisers).sum())

    def m_step(
        self, kind: type[ExponentialMixture], counts: F64, sums: F64, *, learned_weights: bool
    ) -> ExponentialMixture:
        """The parameters of largest posterior density, from Σ q and Σ q x."""
        means = (sums + self.weight * self.mean) / (counts + self.weight)[:, None]
        return kind.of_means(mixing_weights(counts, float(counts.sum()), learned=learned_weights), means)


@dataclass(frozen=True, eq=False)
class Bernoulli(ExponentialMixture):
    """Probabilities of a one, the means of the rows.

    p(x | p) = Π_d p_d^{x_d} (1 − p_d)^{1 − x_d},   θ = log p / (1 − p),   A = −Σ_d log(1 − p_d)
    """

    invalid: ClassVar[str] = (
        "{n} values of X are neither 0 nor 1, which is all that {name} takes{place}; say what counts as one, e.g. "
        "X = X > X.mean()"
    )

    @classmethod
    def of_means(cls, weights: F64, means: F64) -> Self:
        return cls(weights, np.clip(means, SMALLEST_PROBABILITY, LARGEST_PROBABILITY))

    @property
    def slopes(self) -> F64:
        return np.log(self.means) - np.log1p(-self.means)

    @property
    def log_normalisers(self) -> F64:
        return -np.log1p(-self.means).sum(axis=1)

    def as_gaussians(self) -> AsGaussians:
        mean = self.weights @ self.means
        return self._about(mean, float((mean * (1.0 - mean)).mean()))

    @classmethod
    def are_invalid(cls, values: NDArray[Any]) -> NDArray[np.bool_] | None:
        return (values != 0) & (values != 1)

    @classmethod
    def prior_mean(cls, mean: F64) -> F64:
        """That of all rows; a column without ones, or without zeros, may have one, too."""
        return np.clip(mean, LEAST, 1.0 - LEAST)

    def draw(self, c: int, n: int, random: np.random.RandomState) -> F64:
        return (random.random_sample((n, self.n_features)) < self.means[c]).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Poisson(ExponentialMixture):
    """Rates, the means of the rows.

    p(x | λ) = Π_d λ_d^{x_d} e^{−λ_d} / x_d!,   θ = log λ,   A = Σ_d λ_d,   log h(x) = −Σ_d log x_d!
    """

    by_roots: ClassVar[bool] = True  # the roots of counts have all about the same variance
    invalid: ClassVar[str] = "Negative values in data passed to {name}{place}: X holds counts, which are at least 0"

    @classmethod
    def of_means(cls, weights: F64, means: F64) -> Self:
        return cls(weights, np.maximum(means, SMALLEST_RATE))

    @property
    def slopes(self) -> F64:
        return np.log(self.means)

    @property
    def log_normalisers(self) -> F64:
        return self.means.sum(axis=1)

    def as_gaussians(self) -> AsGaussians:
        mean = self.weights @ self.means
        return self._about(mean, float(mean.mean()))

    @classmethod
    def are_invalid(cls, values: NDArray[Any]) -> NDArray[np.bool_] | None:
        return values < 0

    @classmethod
    def log_base(cls, values: F64) -> F64 | None:
        found = np.zeros(values.shape)
        large = (values != 0.0) & (values != 1.0)
        found[large] = -gammaln(values[large] + 1.0)
        return found

    @classmethod
    def prior_mean(cls, mean: F64) -> F64:
        """That of all rows; a column with hardly a count has a rate, too, a small share of that of an average one."""
        return np.maximum(mean, LEAST * max(float(mean.mean()), 1e-100))

    def draw(self, c: int, n: int, random: np.random.RandomState) -> F64:
        return random.poisson(self.means[c], size=(n, self.n_features)).astype(np.float64)
