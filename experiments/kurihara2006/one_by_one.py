"""The start of BJ: rows come one by one, in random order (Blei and Jordan 2006, section 5).

The responsibilities of a row follow from the posteriors of the rows before it, and then it counts for the posteriors:

    q(z_n = t) ∝ exp(E[log V_t] + Σ_{s<t} E[log (1 − V_s)] + E[log N(x_n; μ_t, Λ_t)])
    β, m, ν and S of every component take in q(z_n = t) of the row
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from globular.model.covariances import FAMILIES
from globular.model.observations import ObservedMoments
from globular.model.statistics import F64, I64
from globular.model.wishart import GaussianPrior


@njit(cache=True)
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


def responsibilities(
    rows: F64, order: I64, T: int, alpha: float, beta_0: float, m_0: F64, nu_0: float, S_0: F64
) -> F64:
    """q of every row as it came, (N, T); the last component has all that is left of the stick."""
    log_determinant = float(np.linalg.slogdet(S_0)[1])
    return _responsibilities(rows, order, T, alpha, beta_0, m_0, nu_0, np.linalg.inv(S_0), log_determinant)


@njit(cache=True)
def _responsibilities(
    rows: F64, order: I64, T: int, alpha: float, beta_0: float, m_0: F64, nu_0: float, W_0: F64, log_determinant: float
) -> F64:
    """The same from the inverse of S_0 and its log-determinant, number by number: what NumPy does to whole arrays
    takes ten seconds to compile."""
    N, D = rows.shape
    found = np.zeros((N, T))
    counts, beta, nu, log_determinants = np.zeros(T), np.zeros(T), np.zeros(T), np.zeros(T)
    m, W = np.zeros((T, D)), np.zeros((T, D, D))
    for t in range(T):
        beta[t], nu[t], log_determinants[t] = beta_0, nu_0, log_determinant
        for i in range(D):
            m[t, i] = m_0[i]
            for j in range(D):
                W[t, i, j] = W_0[i, j]
    scores, distances, apart, solved = np.zeros(T), np.zeros(T), np.zeros((T, D)), np.zeros((T, D))
    for n in order:
        left, beyond, largest = 0.0, 0.0, -np.inf
        for t in range(T):
            beyond += counts[t]
        for t in range(T):
            beyond -= counts[t]
            expected = -log_determinants[t] - D / beta[t]  # E[log |Λ|] and what is not known of μ, up to a constant
            for i in range(D):
                expected += digamma(0.5 * (nu[t] - i))
                apart[t, i] = rows[n, i] - m[t, i]
            distances[t] = 0.0
            for i in range(D):
                solved[t, i] = 0.0
                for j in range(D):
                    solved[t, i] += W[t, i, j] * apart[t, j]
                distances[t] += apart[t, i] * solved[t, i]
            scores[t] = left + 0.5 * (expected - nu[t] * distances[t])
            if t < T - 1:
                first, second = 1.0 + counts[t], alpha + beyond
                scores[t] += digamma(first) - digamma(first + second)
                left += digamma(second) - digamma(first + second)
            largest = max(largest, scores[t])
        total = 0.0
        for t in range(T):
            found[n, t] = math.exp(scores[t] - largest)
            total += found[n, t]
        for t in range(T):  # S grows by one outer product, so that its inverse does
            found[n, t] /= total
            q = found[n, t]
            grown = q * beta[t] / (beta[t] + q)
            shrunk = grown / (1.0 + grown * distances[t])
            log_determinants[t] += math.log1p(grown * distances[t])
            for i in range(D):
                m[t, i] += apart[t, i] * q / (beta[t] + q)
                for j in range(D):
                    W[t, i, j] -= shrunk * solved[t, i] * solved[t, j]
            counts[t] += q
            beta[t] += q
            nu[t] += q
    return found


def one_by_one(rows: F64, T: int, alpha: float, prior: GaussianPrior, rng: np.random.Generator) -> ObservedMoments:
    """Sufficient statistics of T components after all rows have come; `prior` is that of full covariances."""
    q = responsibilities(rows, rng.permutation(len(rows)), T, alpha, prior.beta, prior.m, prior.nu, prior.S)
    counts = q.sum(axis=0)
    means = q.T @ rows / np.maximum(counts, np.finfo(np.float64).tiny)[:, None]
    scatter = np.array([(q[:, [t]] * (rows - mean)).T @ (rows - mean) for t, mean in enumerate(means)])
    return ObservedMoments(counts, means, scatter, FAMILIES[prior.covariance_type].scatter)
