"""Poisson components: counts of independent columns, each with a rate of its own.

p(x | λ) = Π_d λ_d^{x_d} e^{−λ_d} / x_d!,   θ = log λ,   A = Σ_d λ_d,   log h(x) = −Σ_d log x_d!
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from globular.model.exponential.family import LEAST, ExponentialMixture
from globular.model.statistics import F64

SMALLEST_RATE = 1e-300


@dataclass(frozen=True, eq=False)
class Poisson(ExponentialMixture):
    """Rates, the means of the rows."""

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
