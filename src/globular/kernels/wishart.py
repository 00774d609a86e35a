"""Numbers that the posteriors of Gaussians with whole matrices are made of, all from one factorisation."""

from __future__ import annotations

import math
from typing import Any

from globular.kernels.compile import inline, kernel
from globular.kernels.triangular import invert_lower

LARGE = 10.0
"""From here on six terms of the asymptotic series give the digamma function to the last digits."""


@inline
def digamma(x: float) -> float:
    """ψ(x) for x > 0: the recurrence up to where the asymptotic series is good."""
    found = 0.0
    while x < LARGE:
        found -= 1.0 / x
        x += 1.0
    square = 1.0 / (x * x)
    series = 1.0 / 240.0 - square * (1.0 / 132.0)
    series = square * (1.0 / 12.0 - square * (1.0 / 120.0 - square * (1.0 / 252.0 - square * series)))
    return found + math.log(x) - 0.5 / x - series


@kernel
def wishart_terms(
    lower: Any,  # IN  (C, D, D) factors of the scales S
    nu: Any,  # IN  (C,)
    means: Any,  # IN  (C, D)
    prior_mean: Any,  # IN  (D,)
    prior_factor: Any,  # IN  (D, D) lower factor of S₀
    inverse: Any,  # OUT (C, D, D) of the factors
    terms: Any,  # OUT (5, C): log |S|, Σ_d ψ((ν − d)/2), Σ_d log Γ((ν − d)/2), tr S₀ S⁻¹, (m − m₀)ᵀ S⁻¹ (m − m₀)
) -> None:
    """O(C·D³)."""
    C, D = means.shape
    invert_lower(lower, inverse)
    for c in range(C):
        determinant = digammas = gammas = trace = distance = 0.0
        for d in range(D):
            half = 0.5 * (nu[c] - d)
            determinant += 2.0 * math.log(lower[c, d, d])
            digammas += digamma(half)
            gammas += math.lgamma(half)
            whitened = 0.0
            for e in range(d + 1):
                whitened += inverse[c, d, e] * (means[c, e] - prior_mean[e])
            distance += whitened * whitened
            for e in range(d + 1):
                product = 0.0
                for f in range(e, d + 1):
                    product += inverse[c, d, f] * prior_factor[f, e]
                trace += product * product
        terms[0, c], terms[1, c], terms[2, c], terms[3, c], terms[4, c] = determinant, digammas, gammas, trace, distance
