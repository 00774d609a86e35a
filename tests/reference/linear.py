"""Mixtures with linear log-densities, equation by equation: their E-step, their densities and one step of EM."""

from typing import Any

import numpy as np
from scipy.special import gammaln

from globular.model.exponential import LinearMixture, LinearStatistics
from globular.model.statistics import F64


def posterior(rows: F64, mixture: LinearMixture) -> tuple[F64, F64]:
    """p(c | x), (N, C), and log p(x) without the base measure, (N,)."""
    joint = rows @ mixture.slopes.T + mixture.constants
    log_density = np.logaddexp.reduce(joint, axis=1)
    return np.exp(joint - log_density[:, None]), log_density


def linear_pass(rows: F64, weights: F64, mixture: LinearMixture) -> LinearStatistics:
    """Statistics of the E-step; `weights` has one entry per row."""
    q, log_density = posterior(rows, mixture)
    q = q * weights[:, None]
    likelihood, total = float(weights @ log_density), float(weights.sum())
    return LinearStatistics(q.sum(axis=0), q.T @ rows, likelihood, total, q.size)


def heights_of(D: int, kappa: float) -> tuple[F64, F64]:
    """Angles t to μ between 0 and π, and log exp(κ cos t) sin^{D−2} t at each."""
    t = np.linspace(0.0, np.pi, 400_001)
    with np.errstate(divide="ignore"):
        return t, kappa * np.cos(t) + ((D - 2) * np.log(np.abs(np.sin(t))) if D > 2 else 0.0)


def trapezoid(values: F64, t: F64) -> float:
    """The integral along t."""
    return float((values.sum() - 0.5 * (values[0] + values[-1])) * (t[1] - t[0]))


def log_sphere_integral(D: int, kappa: float) -> float:
    """log ∫ exp(κ μ·x) over the unit sphere in D ≥ 2 dimensions: rings of one angle to μ, added up."""
    t, heights = heights_of(D, kappa)
    top = heights.max()
    ring = np.log(2.0) + 0.5 * (D - 1) * np.log(np.pi) - gammaln(0.5 * (D - 1))
    return float(ring + top + np.log(trapezoid(np.exp(heights - top), t)))


def mean_cosine(D: int, kappa: float) -> float:
    """E[μ·x] under the von Mises–Fisher distribution, in the same way."""
    t, heights = heights_of(D, kappa)
    share = np.exp(heights - heights.max())
    return trapezoid(share * np.cos(t), t) / trapezoid(share, t)


def log_joint(rows: F64, kind: str, weights: F64, parameters: dict[str, Any]) -> F64:
    """log π_c p(x | c), (N, C), from the density of every row and component alone."""
    means = parameters["means"]
    joint = np.empty((len(rows), len(weights)))
    for c, mean in enumerate(means):
        if kind == "von Mises-Fisher":
            kappa = float(parameters["concentrations"][c])
            own = kappa * (rows @ mean) - log_sphere_integral(rows.shape[1], kappa)
        elif kind == "Poisson":
            own = (rows * np.log(mean) - mean - gammaln(rows + 1.0)).sum(axis=1)
        else:
            own = np.log(np.where(rows == 1, mean, 1.0 - mean)).sum(axis=1)
        joint[:, c] = np.log(weights[c]) + own
    return joint


def em_step(rows: F64, w: F64, kind: str, weights: F64, means: F64, smoothing: float) -> tuple[F64, F64, float]:
    """One step of EM for Poisson and Bernoulli rows: weights, means, and the objective before it."""
    joint = log_joint(rows, kind, weights, {"means": means})
    density = np.logaddexp.reduce(joint, axis=1)
    q = w[:, None] * np.exp(joint - density[:, None])
    mean = w @ rows / w.sum()
    prior = np.clip(mean, 1e-3, 1 - 1e-3) if kind == "Bernoulli" else np.maximum(mean, 1e-3 * mean.mean())
    strength = smoothing * w.sum() / len(means)
    slopes, normaliser = np.log(means), means.sum(axis=1)
    if kind == "Bernoulli":
        slopes, normaliser = np.log(means / (1.0 - means)), -np.log(1.0 - means).sum(axis=1)
    objective = w @ density + strength * (slopes @ prior - normaliser).sum()
    counts = q.sum(axis=0)
    found = (q.T @ rows + strength * prior) / (counts + strength)[:, None]
    return counts / counts.sum(), found, float(objective)
