"""Numbers that posteriors are made of: Cholesky factors of many small matrices, Gaussians from these, and sticks.

Trials of splits ask for thousands of them, of two components each: a call of LAPACK for each matrix, or of NumPy for
each number, costs more than its work.
"""

from __future__ import annotations

import math
from typing import Any

from globular.jit import inline, kernel


@inline
def factor(matrix: Any, least: float, lower: Any) -> bool:
    """The Cholesky factor of a matrix, zeros above its diagonal; False where a pivot is not so much of the diagonal.

    A row at a time; the upper triangle of the matrix is not read. O(D³)
    """
    D = matrix.shape[0]
    for i in range(D):
        for j in range(i + 1):
            rest = matrix[i, j]
            for k in range(j):
                rest -= lower[i, k] * lower[j, k]
            if j < i:
                lower[i, j] = rest / lower[j, j]
            elif rest > 0.0 and rest >= least * matrix[i, i]:
                lower[i, i] = math.sqrt(rest)
            else:
                return False
        for j in range(i + 1, D):
            lower[i, j] = 0.0
    return True


@inline
def invert_row(lower: Any, i: int, inverse: Any) -> None:
    """Row i of the inverse of a lower triangle, by forward substitution from the rows above it. O(i²)."""
    for j in range(lower.shape[0]):
        inverse[i, j] = 0.0
    for k in range(i):
        for j in range(k + 1):
            inverse[i, j] -= lower[i, k] * inverse[k, j]
    inverse[i, i] = 1.0
    for j in range(i + 1):
        inverse[i, j] /= lower[i, i]


@kernel
def invert_factors(
    matrices: Any,  # IN  (C, D, D) positive definite
    lower: Any,  # scratch (D, D)
    inverse: Any,  # scratch (D, D)
    factors: Any,  # OUT (C, D, D) upper triangles U, U Uᵀ the inverse of each; or (0, D, D): none are wanted
) -> bool:
    """Whether all of them have a factor, and what factors of their inverses are. O(C·D³)."""
    for c in range(matrices.shape[0]):
        if not factor(matrices[c], 0.0, lower):
            return False
        if factors.shape[0]:
            for i in range(lower.shape[0]):
                invert_row(lower, i, inverse)
                for j in range(lower.shape[0]):
                    factors[c, j, i] = inverse[i, j]
    return True


@inline
def digamma(x: float) -> float:
    """ψ(x) for x > 0: the recurrence up to where the asymptotic series is good."""
    found = 0.0
    while x < 10.0:  # from there on six terms of the series are good to the last digits
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
def wishart_scales(
    scatter: Any,  # IN  (C, D, D)
    pulled: Any,  # IN  (C,) weights of …
    away: Any,  # IN  (C, D) … the distances from m₀
    prior_scale: Any,  # IN  (D, D) S₀
    least: float,  # IN  what a pivot is of the diagonal, at least
    scales: Any,  # OUT (C, D, D) S
    lower: Any,  # OUT (C, D, D) their factors
) -> bool:
    """S of posteriors, the sum of all three, and whether every one has a factor. O(C·D³)."""
    C, D = away.shape
    positive = True
    for c in range(C):
        for d in range(D):
            for e in range(d + 1):
                entry = 0.5 * (scatter[c, d, e] + scatter[c, e, d]) + pulled[c] * (away[c, d] * away[c, e])
                scales[c, d, e] = scales[c, e, d] = prior_scale[d, e] + entry
        positive = factor(scales[c], least, lower[c]) and positive
    return positive


@kernel
def wishart_terms(
    lower: Any,  # IN  (C, D, D) factors of the scales S
    nu: Any,  # IN  (C,)
    means: Any,  # IN  (C, D)
    prior_mean: Any,  # IN  (D,)
    prior_factor: Any,  # IN  (D, D) lower factor of S₀
    inverse: Any,  # scratch (D, D)
    product: Any,  # scratch (D,)
    factors: Any,  # OUT (C, D, D) upper factors of the expected precisions ν S⁻¹
    terms: Any,  # OUT (5, C): Σ_d ψ((ν − d)/2), tr S₀ S⁻¹, (m − m₀)ᵀ S⁻¹ (m − m₀), Σ_d log Γ((ν − d)/2), log |S|
) -> None:
    """O(C·D³)."""
    C, D = means.shape
    for c in range(C):
        digammas = trace = distance = log_gammas = log_determinant = 0.0
        root = math.sqrt(nu[c])
        for i in range(D):
            invert_row(lower[c], i, inverse)
            whitened = 0.0
            for j in range(D):
                whitened += inverse[i, j] * (means[c, j] - prior_mean[j])
                factors[c, j, i] = root * inverse[i, j]
                product[j] = 0.0
            distance += whitened * whitened
            for f in range(i + 1):
                for e in range(f + 1):
                    product[e] += inverse[i, f] * prior_factor[f, e]
            for e in range(i + 1):
                trace += product[e] * product[e]
            digammas += digamma(0.5 * (nu[c] - i))
            log_gammas += math.lgamma(0.5 * (nu[c] - i))
            log_determinant += 2.0 * math.log(lower[c, i, i])
        terms[0, c], terms[1, c], terms[2, c], terms[3, c] = digammas, trace, distance, log_gammas
        terms[4, c] = log_determinant


@inline
def stick(a: float, b: float, alpha: float, beta: float) -> tuple[float, float, float]:
    """E[log v] and E[log(1 − v)] under q = Beta(a, b), and KL(q ‖ Beta(α, β))."""
    whole = digamma(a + b)
    length, rest = digamma(a) - whole, digamma(b) - whole
    return length, rest, log_beta(alpha, beta) - log_beta(a, b) + (a - alpha) * length + (b - beta) * rest


@kernel
def stick_terms(
    first: Any,  # IN  (T,) φ₁
    second: Any,  # IN  (T,) φ₂
    alpha: float,  # IN  of the prior
    beta: float,  # IN
    terms: Any,  # OUT (3, T): E[log v], E[log(1 − v)], KL(q_v ‖ p_v)
) -> None:
    """Eqs. 14 and 15, and what the sticks have of Eq. 8. O(T)."""
    for i in range(len(first)):
        terms[0, i], terms[1, i], terms[2, i] = stick(first[i], second[i], alpha, beta)


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
            length, rest, moved = stick(alpha + counts[i], prior + log_weights[i], alpha, prior)
            divergence += moved
            log_weights[i] = length + rests
            rests += rest
        divergences[g] = divergence - behind[g] * rests
