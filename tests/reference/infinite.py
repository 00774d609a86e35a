"""Variational infinite Gaussian mixtures (Kurihara 2006), equation by equation: the oracle of one cycle.

Nothing is shared with the library but NumPy and the digamma function. The infinite tail is summed term by term up to
`n_tail` components, each with the prior for its posterior, instead of by Eq. 9.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, gammaln

from globular.model.statistics import F64


@dataclass(frozen=True)
class NormalWishart:
    """q(μ, Λ) = N(μ; m, (β Λ)⁻¹) W(Λ; S⁻¹, ν) of one component; with a vector for S, columns on their own."""

    beta: float
    m: F64
    nu: float
    S: F64

    def expected_log_density(self, rows: F64) -> F64:
        """E[log N(x | μ, Λ)], (N,)."""
        D = len(self.m)
        differences = rows - self.m
        if self.S.ndim == 1:
            log_precision = float(np.sum(digamma(self.nu / 2) + np.log(2 / self.S)))
            mahalanobis = (differences**2 / self.S).sum(axis=1)
        else:
            log_precision = sum(digamma((self.nu - d) / 2) for d in range(D)) + D * np.log(2)
            log_precision -= np.linalg.slogdet(self.S)[1]
            mahalanobis = np.sum(differences * np.linalg.solve(self.S, differences.T).T, axis=1)
        return 0.5 * (log_precision - D * np.log(2 * np.pi) - D / self.beta - self.nu * mahalanobis)

    def update(self, rows: F64, q: F64) -> "NormalWishart":
        """The posterior given rows that count with weights q (Eq. 18)."""
        N = q.sum()
        mean = q @ rows / N if N > 0 else self.m
        centred = rows - mean
        away = mean - self.m
        pulled = self.beta * N / (self.beta + N)
        if self.S.ndim == 1:
            S = self.S + q @ centred**2 + pulled * away**2
        else:
            S = self.S + (centred * q[:, None]).T @ centred + pulled * np.outer(away, away)
        return NormalWishart(self.beta + N, (self.beta * self.m + N * mean) / (self.beta + N), self.nu + N, S)

    def log_evidence(self, rows: F64, q: F64) -> float:
        """log ∫ Π_n p(x_n | μ, Λ)^q_n p(μ, Λ): the ratio of normalisers."""
        after, D, N = self.update(rows, q), len(self.m), q.sum()

        def log_normaliser(p: NormalWishart) -> float:
            if p.S.ndim == 1:
                of_precision = D * gammaln(p.nu / 2) - p.nu / 2 * np.log(p.S).sum()
            else:
                gammas = sum(gammaln((p.nu - d) / 2) for d in range(D))
                of_precision = gammas - p.nu / 2 * np.linalg.slogdet(p.S)[1]
            return float(of_precision - D / 2 * np.log(p.beta))

        return log_normaliser(after) - log_normaliser(self) - N * D / 2 * np.log(np.pi)


@dataclass(frozen=True)
class Cycle:
    """One cycle: its free energy, the responsibilities it used and the parameters it leads to."""

    free_energy: float
    q: F64
    """q(z_n = i) for i ≤ T, (N, T)."""
    tail: F64
    """q(z_n > T), (N,)."""
    sticks: F64
    """φ^v, (T, 2)."""
    components: list[NormalWishart]


def cycle(
    rows: F64, weights: F64, alpha: tuple[float, float], sticks: F64, components: list[NormalWishart],
    prior: NormalWishart, n_tail: int = 400,
) -> Cycle:  # fmt: skip
    """Eqs. 6 to 8, 14 to 18; components are not sorted."""
    T = len(components)
    everything = components + [prior] * n_tail
    phi = np.vstack([sticks, np.tile(np.array(alpha), (n_tail, 1))])
    log_v = digamma(phi[:, 0]) - digamma(phi.sum(axis=1))
    log_rest = digamma(phi[:, 1]) - digamma(phi.sum(axis=1))
    log_pi = log_v + np.concatenate([[0.0], np.cumsum(log_rest)[:-1]])
    S = np.stack([log_pi[i] + c.expected_log_density(rows) for i, c in enumerate(everything)], axis=1)
    log_normaliser = np.logaddexp.reduce(S, axis=1)
    q = np.exp(S - log_normaliser[:, None])
    divergence = sum(beta_divergence(phi[i], alpha) for i in range(T))
    divergence += sum(wishart_divergence(c, prior) for c in components)
    counts = weights @ q
    updated = np.array([[alpha[0] + counts[i], alpha[1] + counts[i + 1 :].sum()] for i in range(T)])
    return Cycle(
        float(divergence - weights @ log_normaliser), q[:, :T], q[:, T:].sum(axis=1), updated,
        [prior.update(rows, weights * q[:, i]) for i in range(T)],
    )  # fmt: skip


def beta_divergence(q: F64, p: tuple[float, float]) -> float:
    """KL between two Beta distributions."""

    def log_beta(a: float, b: float) -> float:
        return float(gammaln(a) + gammaln(b) - gammaln(a + b))

    whole = digamma(q[0] + q[1])
    moved = (q[0] - p[0]) * (digamma(q[0]) - whole) + (q[1] - p[1]) * (digamma(q[1]) - whole)
    return float(log_beta(*p) - log_beta(q[0], q[1]) + moved)


def wishart_divergence(q: NormalWishart, p: NormalWishart) -> float:
    """KL between two Gaussian–Wishart distributions."""
    D = len(q.m)
    if q.S.ndim == 1:
        columns = [wishart_divergence(_column(q, d), _column(p, d)) for d in range(D)]
        return float(sum(columns))
    W = np.linalg.inv(q.S)
    away = q.m - p.m
    of_mean = D * (p.beta / q.beta - 1 - np.log(p.beta / q.beta)) + p.beta * q.nu * away @ W @ away
    log_precision = sum(digamma((q.nu - d) / 2) for d in range(D)) + D * np.log(2) - np.linalg.slogdet(q.S)[1]

    def log_normaliser(x: NormalWishart) -> float:
        gammas = sum(gammaln((x.nu - d) / 2) for d in range(D))
        return float(x.nu * D / 2 * np.log(2) + gammas - x.nu / 2 * np.linalg.slogdet(x.S)[1])

    of_precision = (q.nu - p.nu) / 2 * log_precision + q.nu / 2 * (np.trace(p.S @ W) - D)
    return float(of_mean / 2 + of_precision + log_normaliser(p) - log_normaliser(q))


def _column(x: NormalWishart, d: int) -> "NormalWishart":
    return NormalWishart(x.beta, x.m[d : d + 1], x.nu, x.S[d : d + 1, None])
