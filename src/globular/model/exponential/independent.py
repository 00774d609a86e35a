"""Components of independent columns: zeros and ones (Bernoulli), or counts (Poisson)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from globular.model.exponential.family import LEAST, ExponentialMixture
from globular.model.statistics import F64

SMALLEST_PROBABILITY, LARGEST_PROBABILITY = 1e-300, 1.0 - 2.0**-53


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

    @classmethod
    def are_invalid(cls, values: NDArray[Any]) -> NDArray[np.bool_] | None:
        return (values != 0) & (values != 1)

    @classmethod
    def prior_mean(cls, mean: F64) -> F64:
        """That of all rows; a column without ones, or without zeros, may have one, too."""
        return np.clip(mean, LEAST, 1.0 - LEAST)

    def draw(self, c: int, n: int, random: np.random.RandomState) -> F64:
        return (random.random_sample((n, self.n_features)) < self.means[c]).astype(np.float64)


SMALLEST_RATE = 1e-300


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
