"""The E-step of Gaussian mixtures, equation by equation: the oracle of `soft_pass`."""

from dataclasses import replace
from typing import Any

import numpy as np

from globular.model.covariances import CovarianceLimits, ScatterKind
from globular.model.gaussian import GaussianParameters, isotropic_mixture, m_step
from globular.model.statistics import F64, I64, SoftStatistics, WithinStatistics

SUMS = ("counts", "sums", "scatter", "log_likelihood", "total_weight")


def assert_alike(found: Any, wanted: Any, rtol: float = 1e-9, names: tuple[str, ...] = SUMS) -> None:
    """Statistics are the same to rounding, in units of the largest of a kind."""
    for name in names:
        one, other = getattr(found, name), getattr(wanted, name)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * np.abs(other).max(), err_msg=name)


def mixture_for(rows: F64, covariance_type: str, C: int = 4) -> GaussianParameters:
    """What one iteration makes of the first rows as means."""
    start = isotropic_mixture(rows[:C], float(rows.var()), covariance_type)
    limits = CovarianceLimits(1e-6, np.full(rows.shape[1], 1e-12))
    return m_step(start, soft_pass(rows, np.ones(len(rows)), start), limits)


def covariance_matrices(mixture: GaussianParameters) -> F64:
    """Σ_c as D×D matrices, whatever the family."""
    return mixture.family.matrices(mixture.covariances, *mixture.means.shape)


def log_joint(rows: F64, mixture: GaussianParameters) -> F64:
    """log π_c − ½ log |2πΣ_c| − ½ (x − μ_c)ᵀ Σ_c⁻¹ (x − μ_c), (N, C)."""
    joint = np.empty((len(rows), mixture.n_components))
    for c, covariance in enumerate(covariance_matrices(mixture)):
        differences = rows - mixture.means[c]
        mahalanobis = np.sum(differences * np.linalg.solve(covariance, differences.T).T, axis=1)
        log_determinant = np.linalg.slogdet(2 * np.pi * covariance)[1]
        joint[:, c] = np.log(mixture.weights[c]) - 0.5 * log_determinant - 0.5 * mahalanobis
    return joint


def posterior(rows: F64, mixture: GaussianParameters) -> tuple[F64, F64]:
    """p(c | x), (N, C), and log p(x), (N,)."""
    joint = log_joint(rows, mixture)
    log_density = np.logaddexp.reduce(joint, axis=1)
    if mixture.noise is not None:
        volume = np.prod(mixture.noise.high - mixture.noise.low)
        log_density = np.logaddexp(log_density, np.log(mixture.noise.weight / volume))
    return np.exp(joint - log_density[:, None]), log_density


def answers(rows: F64, mixture: GaussianParameters) -> dict[str, Any]:
    """What a mixture says of every row; noise is the last of the probabilities, and the component −1."""
    q, log_density = posterior(rows, mixture)
    if mixture.noise is not None:
        q = np.column_stack([q, 1.0 - q.sum(axis=1)])
    best = q.argmax(axis=1)
    components = np.where(best < mixture.n_components, best, -1)
    return {"probabilities": q, "log_densities": log_density, "components": components}


def scatter_of(matrices: F64, kind: ScatterKind) -> F64:
    """Second moments of a kind from whole matrices, (C, D, D)."""
    return kind.from_squares(np.diagonal(matrices, axis1=1, axis2=2)) if kind.separable else matrices


def soft_pass(rows: F64, weights: F64, mixture: GaussianParameters) -> SoftStatistics:
    """Statistics of the E-step; `weights` has one entry per row."""
    q, log_density = posterior(rows, mixture)
    q = q * weights[:, None]
    differences = rows[:, None, :] - mixture.means  # (N, C, D)
    scatter = scatter_of(np.einsum("nc,ncd,nce->cde", q, differences, differences), mixture.family.scatter)
    sums = np.einsum("nc,ncd->cd", q, differences)
    total = float(weights.sum())
    return SoftStatistics(q.sum(axis=0), sums, scatter, float(weights @ log_density), total, q.size)


def tied_pass(rows: F64, weights: F64, mixture: GaussianParameters, offset: F64) -> SoftStatistics:
    """The same for components with one covariance, without second moments and the quadratic form of every row."""
    found, away = soft_pass(rows, weights, mixture), rows - offset
    mahalanobis = np.sum(away * np.linalg.solve(covariance_matrices(mixture)[0], away.T).T, axis=1)
    return replace(
        found, scatter=found.scatter[:0], log_likelihood=found.log_likelihood + 0.5 * float(weights @ mahalanobis)
    )


def within_pass(rows: F64, weights: F64, mixture: GaussianParameters, labels: I64, n_parts: int) -> WithinStatistics:
    """The E-step of the parts of every component on the rows with its label."""
    C = mixture.n_components // n_parts
    inside = [slice(c * n_parts, (c + 1) * n_parts) for c in range(C)]
    found = [soft_pass(rows[labels == c], weights[labels == c], mixture.pick(inside[c])) for c in range(C)]
    counts, sums, scatter = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("counts", "sums", "scatter")
    )
    likelihoods = np.array([each.log_likelihood for each in found])
    parts = SoftStatistics(counts, sums, scatter, float(likelihoods.sum()), float(weights.sum()), len(rows) * n_parts)
    return WithinStatistics(parts, likelihoods)
