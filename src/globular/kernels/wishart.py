"""Numbers that posteriors are made of: sticks, and Gaussians with whole matrices from one factorisation each.

Trials of splits ask for thousands of them, of two components each: one call of a kernel costs what one of NumPy does.
"""

from __future__ import annotations

import math
from typing import Any

from globular.kernels.compile import inline, kernel

LARGE = 10.0  # from here on six terms of the asymptotic series give the digamma function to the last digits


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


@inline
def log_beta(a: float, b: float) -> float:
    """log B(a, b)."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


@kernel
def invert_lower(
    lower: Any,  # IN  (C, D, D) lower triangular
    inverse: Any,  # OUT (C, D, D) zeros above the diagonal
) -> None:
    """Forward substitution, a row of the inverse at a time; a library call for each would cost more. O(C·D³)."""
    C, D = lower.shape[:2]
    for c in range(C):
        for i in range(D):
            for j in range(D):
                inverse[c, i, j] = 0.0
            for k in range(i):
                factor = lower[c, i, k]
                for j in range(k + 1):
                    inverse[c, i, j] -= factor * inverse[c, k, j]
            scale = 1.0 / lower[c, i, i]
            for j in range(i):
                inverse[c, i, j] *= scale
            inverse[c, i, i] = scale


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


@kernel
def wishart_normalisers(
    lower: Any,  # IN  (C, D, D)
    nu: Any,  # IN  (C,)
    terms: Any,  # OUT (2, C): Σ_d log Γ((ν − d)/2), log |S|
) -> None:
    """O(C·D)."""
    C, D = lower.shape[:2]
    for c in range(C):
        log_gammas = log_determinant = 0.0
        for d in range(D):
            log_gammas += math.lgamma(0.5 * (nu[c] - d))
            log_determinant += 2.0 * math.log(lower[c, d, d])
        terms[0, c], terms[1, c] = log_gammas, log_determinant


@kernel
def stick_terms(
    first: Any,  # IN  (T,) φ₁
    second: Any,  # IN  (T,) φ₂
    alpha: float,  # IN  of the prior
    beta: float,  # IN
    terms: Any,  # OUT (3, T): E[log v], E[log(1 − v)], KL(q_v ‖ p_v)
) -> None:
    """Eqs. 14 and 15, and what the sticks have of Eq. 8. O(T)."""
    log_prior = log_beta(alpha, beta)
    for i in range(len(first)):
        a, b = first[i], second[i]
        whole = digamma(a + b)
        length, rest = digamma(a) - whole, digamma(b) - whole
        terms[0, i], terms[1, i] = length, rest
        terms[2, i] = log_prior - log_beta(a, b) + (a - alpha) * length + (b - beta) * rest


@kernel
def group_sticks(
    counts: Any,  # IN  (T,) of the components of all groups
    bounds: Any,  # IN  (G + 1,) those of group g are bounds[g] … bounds[g + 1] − 1
    before: Any,  # IN  (G,) sticks before each group
    behind: Any,  # IN  (G,) what the components behind it hold
    alpha: float,  # IN  of the prior
    beta: float,  # IN
    discount: float,  # IN  what β grows by from stick to stick
    log_weights: Any,  # OUT (T,) E[log π_i]
    divergences: Any,  # OUT (G,) Σ KL(q_{v_i} ‖ p_v), less what the sticks leave to those behind
) -> None:
    """Sticks of every group by itself. O(T)."""
    for g in range(behind.shape[0]):
        beyond = 0.0
        for i in range(bounds[g + 1] - 1, bounds[g] - 1, -1):
            log_weights[i] = behind[g] + beyond  # for the moment
            beyond += counts[i]
        rests = divergence = 0.0
        for i in range(bounds[g], bounds[g + 1]):
            prior = beta + discount * (before[g] + i - bounds[g] + 1)
            a, b = alpha + counts[i], prior + log_weights[i]
            whole = digamma(a + b)
            length, rest = digamma(a) - whole, digamma(b) - whole
            divergence += log_beta(alpha, prior) - log_beta(a, b) + (a - alpha) * length + (b - prior) * rest
            log_weights[i] = length + rests
            rests += rest
        divergences[g] = divergence - behind[g] * rests
