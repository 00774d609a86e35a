"""Modified Bessel functions I_ν of large orders and arguments, and the ratio that von Mises–Fisher components need.

    log I_ν(κ) − κ        what κ grows by is left out, so that nothing large is subtracted from something large
    A(κ) = I_{ν+1}(κ) / I_ν(κ),   A′ = 1 − A² − (2ν + 1) A / κ

SciPy's `ive` serves where it neither underflows nor gives up; below come the power series (small κ) and, for large
orders, the uniform expansion of Olver (DLMF 10.41.3).
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, ive

from globular.model.statistics import F64

_TERMS = 24
"""Of the power series: enough to the last digit where κ² / 4 ≤ ν + 1."""
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
