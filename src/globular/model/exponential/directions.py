"""Von Mises–Fisher components: directions about a mean direction, on the unit sphere in D dimensions.

    p(x | μ, κ) = c_D(κ) exp(κ μ · x),   c_D(κ) = κ^ν / ((2π)^{ν+1} I_ν(κ)),   ν = D/2 − 1

θ = κ μ. The mean of rows of a component has the direction μ and the length A_D(κ) = I_{ν+1}(κ) / I_ν(κ), the mean
resultant length (Banerjee et al. 2005); A′ = 1 − A² − (2ν + 1) A / κ. Of the Bessel functions log I_ν(κ) − κ is kept:
what κ grows by is left out, so that nothing large is subtracted from something large. SciPy's `ive` serves where it
neither underflows nor gives up; there are also the power series (small κ) and, for large orders, the uniform expansion
of Olver (DLMF 10.41.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from scipy.special import gammaln, ive

from globular.model.exponential.family import AsGaussians, ExponentialMixture
from globular.model.statistics import F64

LARGEST_CONCENTRATION = 1e8
"""κ of rows that all but coincide: their angles are about 1e-4."""
UNIFORM_UP_TO = 1e-12
"""κ up to which a density is that of the uniform distribution."""
_TERMS = 24
"""Terms of the power series: enough to the last digit where κ² / 4 ≤ ν + 1."""
_UNDERFLOW = 1e-290
"""Values of `ive` below it have lost digits."""
_NEWTON_STEPS, _NEWTON_TOLERANCE = 60, 1e-8
"""Newton's method squares the relative error, so that after a step of this size only rounding is left. (Rounding alone
moves a κ of 1000 by 1e-13 of it: a smaller tolerance would wait for ever.)"""


def log_scaled_bessel(order: float, kappa: F64) -> F64:
    """log I_ν(κ) − κ for ν > −1 and κ > 0, (C,)."""
    kappa = np.asarray(kappa, dtype=np.float64)
    with np.errstate(all="ignore"):
        scaled = ive(order, kappa)
        found = np.log(scaled)
    small = kappa * kappa <= 4.0 * (order + 1.0)
    lost = ~small & ~(np.isfinite(found) & (scaled > _UNDERFLOW))
    if small.any():
        found[small] = _power_series(order, kappa[small])
    if lost.any():
        found[lost] = (_uniform_expansion if order > 1.0 else _large_arguments)(order, kappa[lost])
    return found


def _power_series(order: float, kappa: F64) -> F64:
    """log (κ/2)^ν / Γ(ν+1) Σ_k (κ²/4)^k / (k! (ν+1)…(ν+k)), less κ."""
    quarter = 0.25 * kappa * kappa
    term = np.ones_like(kappa)
    total = term.copy()
    for k in range(1, _TERMS):
        term = term * quarter / (k * (order + k))
        total += term
    return order * np.log(0.5 * kappa) - gammaln(order + 1.0) + np.log(total) - kappa


def _uniform_expansion(order: float, kappa: F64) -> F64:
    """DLMF 10.41.3 with four terms: good to ν⁻⁵."""
    z = kappa / order
    root = np.sqrt(1.0 + z * z)
    p = 1.0 / root
    p2 = p * p
    u1 = p * (3.0 - 5.0 * p2) / 24.0
    u2 = p2 * (81.0 - 462.0 * p2 + 385.0 * p2**2) / 1152.0
    u3 = p * p2 * (30375.0 - 369603.0 * p2 + 765765.0 * p2**2 - 425425.0 * p2**3) / 414720.0
    u4 = 4465125.0 - 94121676.0 * p2 + 349922430.0 * p2**2 - 446185740.0 * p2**3 + 185910725.0 * p2**4
    u4 = p2 * p2 * u4 / 39813120.0
    correction = (u1 + (u2 + (u3 + u4 / order) / order) / order) / order
    # η − z, without the difference of two large numbers
    exponent = 1.0 / (root + z) + np.log(z / (1.0 + root))
    return order * exponent - 0.5 * np.log(2.0 * np.pi * order) - 0.5 * np.log(root) + np.log1p(correction)


def _large_arguments(order: float, kappa: F64) -> F64:
    """DLMF 10.40.1 with three terms, for κ so large that `ive` gives up."""
    mu = 4.0 * order * order
    first = -(mu - 1.0) / (8.0 * kappa)
    second = (mu - 1.0) * (mu - 9.0) / (2.0 * (8.0 * kappa) ** 2)
    return -0.5 * np.log(2.0 * np.pi * kappa) + np.log1p(first + second)


def bessel_ratio(order: float, kappa: F64) -> F64:
    """A(κ) = I_{ν+1}(κ) / I_ν(κ), (C,); 0 at κ = 0."""
    kappa = np.asarray(kappa, dtype=np.float64)
    found = np.zeros_like(kappa)
    positive = kappa > 0.0
    some = kappa[positive]
    found[positive] = np.exp(log_scaled_bessel(order + 1.0, some) - log_scaled_bessel(order, some))
    return np.minimum(found, 1.0)


def concentrations_of(lengths: F64, n_columns: int, largest: float) -> F64:
    """κ with A(κ) = R for mean resultant lengths R, (C,), at most `largest`.

    The approximation of Banerjee et al. (2005), κ ≈ R (D − R²) / (1 − R²), then Newton's method: A is concave, so that
    after its first step it comes from below and cannot overshoot.
    """
    order = 0.5 * n_columns - 1.0
    lengths = np.clip(np.asarray(lengths, dtype=np.float64), 0.0, 1.0)
    limited = lengths >= bessel_ratio(order, np.full(1, largest))[0]
    R = np.where(limited, 0.0, lengths)
    kappa = np.minimum(R * (n_columns - R**2) / (1.0 - R**2), largest)
    for _ in range(_NEWTON_STEPS):
        active = kappa > 0.0
        A = bessel_ratio(order, kappa)
        slope = 1.0 - A**2 - (n_columns - 1.0) * np.divide(A, kappa, out=np.ones_like(A), where=active)
        # near R = 1 the slope is the difference of numbers close to one; what rounding leaves of it is no step
        step = np.divide(A - R, slope, out=np.zeros_like(A), where=active & (slope > 1e-300))
        moved = np.clip(kappa - step, 0.5 * kappa, np.minimum(2.0 * kappa, largest))
        settled = np.abs(moved - kappa) <= _NEWTON_TOLERANCE * moved
        kappa = moved
        if settled.all():
            break
    return np.where(limited, largest, kappa)


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

    def as_gaussians(self) -> AsGaussians:
        """For rows of unit length a Gaussian at μ of variance 1/κ is the same, but for a constant of the component."""
        kappa = np.maximum(self.concentrations, 1.0)
        gaussians = self._gaussians("spherical", self.slopes / kappa[:, None], 1.0 / kappa, square=1.0)
        return AsGaussians(gaussians, np.zeros(self.n_features), 0.0)

    @property
    def row_means(self) -> F64:
        return bessel_ratio(0.5 * self.n_features - 1.0, self.concentrations)[:, None] * self.means

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
