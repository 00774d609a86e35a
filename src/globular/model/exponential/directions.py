"""Von Mises–Fisher components: directions about a mean direction, on the unit sphere in D dimensions.

    p(x | μ, κ) = c_D(κ) exp(κ μ · x),   c_D(κ) = κ^ν / ((2π)^{ν+1} I_ν(κ)),   ν = D/2 − 1

θ = κ μ. The mean of rows of a component has the direction μ and the length A_D(κ) = I_{ν+1}(κ) / I_ν(κ), the mean
resultant length (Banerjee et al. 2005).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from scipy.special import gammaln

from globular.model.exponential.bessel import concentrations_of, log_scaled_bessel
from globular.model.exponential.family import ExponentialMixture
from globular.model.statistics import F64

LARGEST_CONCENTRATION = 1e8
"""κ of rows that all but coincide: their angles are about 1e-4."""
UNIFORM_UP_TO = 1e-12
"""κ up to which a density is that of the uniform distribution."""


@dataclass(frozen=True, eq=False)
class Directions(ExponentialMixture):
    """Mean directions, of unit length, with concentrations."""

    concentrations: F64
    """κ, (C,)."""

    unit_rows: ClassVar[bool] = True
    invalid: ClassVar[str] = "{n} of the rows of X are zero and have no direction{place}; leave them out"

    @classmethod
    def of_means(cls, weights: F64, means: F64) -> Self:
        lengths = np.sqrt(np.einsum("cd,cd->c", means, means))
        directions = np.divide(means, lengths[:, None], out=np.zeros_like(means), where=lengths[:, None] > 0)
        directions[lengths == 0, 0] = 1.0  # of a uniform component any will do
        kappa = concentrations_of(lengths, means.shape[1], LARGEST_CONCENTRATION)
        return cls(weights, directions, kappa)

    @property
    def slopes(self) -> F64:
        return self.concentrations[:, None] * self.means

    @property
    def log_normalisers(self) -> F64:
        return log_normalisers(self.concentrations, self.n_features)

    @classmethod
    def prior_mean(cls, mean: F64) -> F64:
        """That of all rows, but never of unit length, which it has where all rows are the same."""
        return mean * min(1.0, (1.0 - 1e-6) / max(float(np.sqrt(mean @ mean)), 1e-300))

    @property
    def arrays(self) -> dict[str, F64]:
        return {**super().arrays, "concentrations": self.concentrations}

    def draw(self, c: int, n: int, random: np.random.RandomState) -> F64:
        """By rejection of the cosine w = μ · x (Wood 1994), and a direction at right angles to μ."""
        mu, D = self.means[c], self.n_features
        cosines = _draw_cosines(float(self.concentrations[c]), D, n, random)
        if D == 1:
            return cosines[:, None] * mu
        away = random.standard_normal((n, D))
        away -= (away @ mu)[:, None] * mu
        away /= np.linalg.norm(away, axis=1, keepdims=True)
        return cosines[:, None] * mu + np.sqrt(np.maximum(1.0 - cosines**2, 0.0))[:, None] * away


def log_normalisers(kappa: F64, n_columns: int) -> F64:
    """−log c_D(κ), (C,); that of the uniform distribution, the surface of the sphere, at κ = 0."""
    order = 0.5 * n_columns - 1.0
    surface = math.log(2.0) + 0.5 * n_columns * math.log(math.pi) - float(gammaln(0.5 * n_columns))
    some = np.maximum(kappa, UNIFORM_UP_TO)
    found = (order + 1.0) * math.log(2.0 * math.pi) - order * np.log(some) + log_scaled_bessel(order, some) + some
    return np.where(kappa > UNIFORM_UP_TO, found, surface)


def _draw_cosines(kappa: float, D: int, n: int, random: np.random.RandomState) -> F64:
    if D == 1:  # two directions
        return np.where(random.random_sample(n) < 1.0 / (1.0 + math.exp(-2.0 * min(kappa, 350.0))), 1.0, -1.0)
    half = 0.5 * (D - 1)
    b = half / (kappa + math.hypot(kappa, half))
    middle = (1.0 - b) / (1.0 + b)
    limit = kappa * middle + (D - 1) * math.log1p(-(middle**2)) if b > 0 else 0.0
    found: F64 = np.empty(0)
    while len(found) < n:
        z = random.beta(half, half, size=n)
        w = (1.0 - (1.0 + b) * z) / (1.0 - (1.0 - b) * z)
        accepted = kappa * w + (D - 1) * np.log1p(-middle * w) - limit >= np.log(random.random_sample(n))
        found = np.concatenate([found, w[accepted]])
    return found[:n]
