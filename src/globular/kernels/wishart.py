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
    product: Any,  # scratch (D,)
    inverse: Any,  # OUT (C, D, D) of the factors
    terms: Any,  # OUT (3, C): Σ_d ψ((ν − d)/2), tr S₀ S⁻¹, (m − m₀)ᵀ S⁻¹ (m − m₀)
) -> None:
    """O(C·D³)."""
    C, D = means.shape
    invert_lower(lower, inverse)
    for c in range(C):
        digammas = trace = distance = 0.0
        for d in range(D):
            digammas += digamma(0.5 * (nu[c] - d))
            whitened = 0.0
            for e in range(d + 1):
                whitened += inverse[c, d, e] * (means[c, e] - prior_mean[e])
                product[e] = 0.0
            distance += whitened * whitened
            for f in range(d + 1):
                entry = inverse[c, d, f]
                for e in range(f + 1):
                    product[e] += entry * prior_factor[f, e]
            for e in range(d + 1):
                trace += product[e] * product[e]
        terms[0, c], terms[1, c], terms[2, c] = digammas, trace, distance
