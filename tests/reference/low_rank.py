"""Mixtures of factor analysers with whole covariance matrices: the oracle of `ExpectLowRank` and of its M-step."""

import numpy as np
from numpy.typing import NDArray

from globular.model.cells import CenterCells
from globular.model.covariances import CovarianceLimits
from globular.model.gaussian import GaussianParameters
from globular.model.low_rank import LowRankParameters, LowRankStatistics
from globular.model.statistics import F64
from reference.expect import log_joint
from reference.probe import nominated_members


def covariance_matrices(mixture: LowRankParameters) -> F64:
    """Λᵀ Λ + diag ψ, (C, D, D), in the coordinates of the mixture."""
    return np.stack([L.T @ L + np.diag(psi) for L, psi in zip(mixture.loadings, mixture.noise, strict=True)])


def scatter_within(rows: F64, weights: F64, labels: NDArray[np.int32], centers: F64, scales: F64) -> F64:
    """Σ w s_c (x − μ_c)(x − μ_c)ᵀ, (D, D)."""
    away = rows - centers[labels]
    return np.einsum("n,nd,ne->de", weights * scales[labels], away, away)


def in_columns(mixture: LowRankParameters) -> GaussianParameters:
    """The same mixture about the columns themselves, with its matrices written out: B Σ Bᵀ with x = origin + B z."""
    if mixture.coordinates is None:
        return as_full(mixture)
    B = np.linalg.inv(mixture.coordinates.forward).T
    covariances = B @ covariance_matrices(mixture) @ B.T
    means = mixture.coordinates.origin + mixture.means @ B.T
    return GaussianParameters(mixture.weights, means, (covariances + covariances.transpose(0, 2, 1)) / 2, "full")


def seen(rows: F64, mixture: LowRankParameters) -> F64:
    """Rows in the coordinates of the mixture."""
    return rows if mixture.coordinates is None else (rows - mixture.coordinates.origin) @ mixture.coordinates.forward


def as_full(mixture: LowRankParameters) -> GaussianParameters:
    """The same mixture with its matrices written out."""
    return GaussianParameters(mixture.weights, mixture.means, covariance_matrices(mixture), "full")


def factor_means(rows: F64, mixture: LowRankParameters, c: int) -> F64:
    """E[z | x] = Λ Σ⁻¹ (x − μ), (N, q)."""
    return (mixture.loadings[c] @ np.linalg.solve(covariance_matrices(mixture)[c], (rows - mixture.means[c]).T)).T


def reconstruction(rows: F64, mixture: LowRankParameters, noise: F64, share: F64) -> F64:
    """Σ_c p(c | x) (x − diag(noise_c) Σ_c⁻¹ (x − μ_c)), (N, D)."""
    total = np.zeros_like(rows)
    for c, matrix in enumerate(covariance_matrices(mixture)):
        total += share[:, [c]] * (rows - noise[c] * np.linalg.solve(matrix, (rows - mixture.means[c]).T).T)
    return total


def unblurred(rows: F64, mixture: GaussianParameters, noise: F64, share: F64) -> F64:
    """Σ_c p(c | x) (x − diag(noise) Σ_c⁻¹ (x − μ_c)), (N, D), of full covariances that include the noise."""
    total = np.zeros_like(rows)
    for c, matrix in enumerate(mixture.covariances):
        total += share[:, [c]] * (rows - noise * np.linalg.solve(matrix, (rows - mixture.means[c]).T).T)
    return total


def statistics(rows: F64, weights: F64, mixture: LowRankParameters, q: F64, n_distances: int) -> LowRankStatistics:
    """Sums for responsibilities q, (N, C), zero outside K(n); the bound is Σ w log Σ_{c ∈ K(n)} p(c, x)."""
    joint = np.where(q > 0, log_joint(rows, in_columns(mixture)), -np.inf)
    r, away = q * weights[:, None], seen(rows, mixture)[:, None, :] - mixture.means
    cross = np.einsum("nc,cqe,nce,ncd->cqd", r, mixture.directions, away, away)
    return LowRankStatistics(
        r.sum(axis=0), np.einsum("nc,ncd->cd", r, away), np.einsum("nc,ncd->cd", r, away**2),
        float(weights @ np.logaddexp.reduce(joint, axis=1)), float(weights.sum()), n_distances, cross=cross,
    )  # fmt: skip


def responsibilities(joint: F64, members: NDArray[np.int32]) -> F64:
    """The posterior renormalised over K(n), (N, C)."""
    kept = np.full_like(joint, -np.inf)
    for i, known in enumerate(members):
        kept[i, known[known >= 0]] = joint[i, known[known >= 0]]
    return np.exp(kept - np.logaddexp.reduce(kept, axis=1)[:, None])


def exact_pass(rows: F64, weights: F64, mixture: LowRankParameters) -> LowRankStatistics:
    """The E-step among all components."""
    joint = log_joint(rows, in_columns(mixture))
    q = np.exp(joint - np.logaddexp.reduce(joint, axis=1)[:, None])
    return statistics(rows, weights, mixture, q, joint.size)


def probing_pass(
    rows: F64, weights: F64, mixture: LowRankParameters, cells: CenterCells | None, n_probes: int, n_nominees: int,
    members: NDArray[np.int32],
) -> tuple[NDArray[np.int32], LowRankStatistics]:  # fmt: skip
    """New K(n), best first, and its statistics: of the visited cells the columns without correlations nominate."""
    joint, by_columns = log_joint(rows, as_full(mixture)), log_joint(rows, mixture.columns)
    kept, n_distances = nominated_members(rows, joint, by_columns, cells, n_probes, n_nominees, members)
    return kept, statistics(rows, weights, mixture, responsibilities(joint, kept), n_distances)


def m_step(rows: F64, weights: F64, q: F64, mixture: LowRankParameters, limits: CovarianceLimits) -> LowRankParameters:
    """Means, then one step of EM for the factors of every component on rows weighted by q; noise of its own for each.

    As in the textbook: E[z z ᵀ | x] = I − Λ Σ⁻¹ Λᵀ + E[z | x] E[z | x]ᵀ.
    """
    r = q * weights[:, None]
    means = (r.T @ rows) / r.sum(axis=0)[:, None]
    loadings, noise = np.empty_like(mixture.loadings), np.empty_like(mixture.noise)
    for c, matrix in enumerate(covariance_matrices(mixture)):
        away, W = rows - means[c], mixture.loadings[c] @ np.linalg.inv(matrix)
        z = away @ W.T
        squares = r[:, c].sum() * (np.eye(len(W)) - W @ mixture.loadings[c].T) + (r[:, c, None] * z).T @ z
        loadings[c] = np.linalg.solve(squares, (r[:, c, None] * z).T @ away)
        rest = (r[:, c, None] * away * (away - z @ loadings[c])).sum(axis=0) / r[:, c].sum()
        noise[c] = np.maximum(np.maximum(rest, 0.0) + limits.reg_covar, limits.smallest)
    return LowRankParameters(r.sum(axis=0) / r.sum(), means, loadings, noise)
