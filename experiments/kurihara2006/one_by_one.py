"""The start of BJ: rows come one by one, in random order (Blei and Jordan 2006, section 5).

The responsibilities of a row follow from the posteriors of the rows before it, and then it counts for the posteriors:

    q(z_n = t) ∝ exp(E[log V_t] + Σ_{s<t} E[log (1 − V_s)] + E[log N(x_n; μ_t, Λ_t)])
    β, m, ν and S of every component take in q(z_n = t) of the row
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from globular.kernels.wishart import digamma
from globular.model.covariances import FAMILIES
from globular.model.observations import Moments
from globular.model.statistics import F64, I64
from globular.model.wishart import GaussianPrior


@njit(cache=True)
def responsibilities(
    rows: F64, order: I64, T: int, alpha: float, beta_0: float, m_0: F64, nu_0: float, S_0: F64
) -> F64:
    """q of every row as it came, (N, T); the last component has all that is left of the stick."""
    N, D = rows.shape
    found = np.zeros((N, T))
    counts, beta, nu = np.zeros(T), np.full(T, beta_0), np.full(T, nu_0)
    m, W = np.zeros((T, D)), np.zeros((T, D, D))
    log_determinants = np.full(T, np.linalg.slogdet(S_0)[1])
    for t in range(T):
        m[t], W[t] = m_0, np.linalg.inv(S_0)
    scores, distances, apart, solved = np.zeros(T), np.zeros(T), np.zeros((T, D)), np.zeros((T, D))
    for n in order:
        left, beyond = 0.0, counts.sum()
        for t in range(T):
            beyond -= counts[t]
            expected = -log_determinants[t] - D / beta[t]  # E[log |Λ|] and what is not known of μ, up to a constant
            for j in range(D):
                expected += digamma(0.5 * (nu[t] - j))
            apart[t] = rows[n] - m[t]
            solved[t] = W[t] @ apart[t]
            distances[t] = apart[t] @ solved[t]
            scores[t] = left + 0.5 * (expected - nu[t] * distances[t])
            if t < T - 1:
                first, second = 1.0 + counts[t], alpha + beyond
                scores[t] += digamma(first) - digamma(first + second)
                left += digamma(second) - digamma(first + second)
        q = np.exp(scores - scores.max())
        q /= q.sum()
        found[n] = q
        for t in range(T):  # S grows by one outer product, so that its inverse does
            grown = q[t] * beta[t] / (beta[t] + q[t])
            W[t] -= np.outer(solved[t], solved[t] * (grown / (1.0 + grown * distances[t])))
            log_determinants[t] += math.log1p(grown * distances[t])
            m[t] += apart[t] * (q[t] / (beta[t] + q[t]))
            counts[t] += q[t]
            beta[t] += q[t]
            nu[t] += q[t]
    return found


def one_by_one(rows: F64, T: int, alpha: float, prior: GaussianPrior, rng: np.random.Generator) -> Moments:
    """Sufficient statistics of T components after all rows have come; `prior` is that of full covariances."""
    q = responsibilities(rows, rng.permutation(len(rows)), T, alpha, prior.beta, prior.m, prior.nu, prior.S)
    counts = q.sum(axis=0)
    means = q.T @ rows / np.maximum(counts, np.finfo(np.float64).tiny)[:, None]
    scatter = np.array([(q[:, [t]] * (rows - mean)).T @ (rows - mean) for t, mean in enumerate(means)])
    return Moments(counts, means, scatter, FAMILIES[prior.covariance_type].scatter)
