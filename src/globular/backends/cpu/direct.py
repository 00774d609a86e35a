"""E-steps of few components from differences: no features, so nothing that many components would have to pay for.

A component's part of the log-joint of a chunk is −½ ⟨(x − μ)ᵀ Σ⁻¹ (x − μ)⟩: the difference of means and, where there is
scatter, a product of packed matrices. For two to eight components that is less work than the packed products of
`chunk_blocks`, and far less to prepare; trials of splits ask for thousands of such steps.
"""

from __future__ import annotations

import numpy as np

from globular.backends.cpu.chunk_blocks import ABSENT, packed_precisions
from globular.kernels.soft import softmax_rows
from globular.model.chunks import Chunks, coarsen, unpack
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics

SMALLEST_SHARE = float(np.exp(-16.0))
"""Smaller responsibilities count, but move nothing."""


def direct_pass(chunks: Chunks, mixture: GaussianParameters) -> SoftStatistics:
    """See `LocalShard.chunk_pass`. O(M·C·S)."""
    C, kind, weights = mixture.n_components, mixture.family.scatter, chunks.weights
    constants, factors = np.maximum(mixture.log_constants, ABSENT), per_component(mixture)
    summed = _scatter(chunks, mixture)
    q, densities = np.empty((len(chunks), C)), np.empty(len(chunks))
    for c in range(C):
        q[:, c] = squared(chunks.means - mixture.means[c], factors[c])
    if summed.shape[1]:
        spread = np.maximum(summed @ packed_precisions(mixture).T, 0.0)
        q += np.divide(spread, weights[:, None], out=np.zeros_like(spread), where=weights[:, None] > 0)
    q *= -0.5
    q += constants
    softmax_rows(q, weights, densities)
    counts, sums, scatter = no_moments(mixture)
    for c in range(C):
        held = np.flatnonzero(q[:, c] > SMALLEST_SHARE * weights)
        place = slice(c, c + 1)
        add_moments(chunks.means[held] - mixture.means[c], q[held, c], counts[place], sums[place], scatter[place])
    if summed.shape[1]:
        shares = np.divide(q, weights[:, None], out=np.zeros_like(q), where=weights[:, None] > 0)
        scatter += unpack(shares.T @ summed, kind, chunks.means.shape[1])
    return SoftStatistics(
        q.sum(axis=0), sums, scatter, float(weights @ densities), float(weights.sum()), len(chunks) * C
    )


def _scatter(chunks: Chunks, mixture: GaussianParameters) -> F64:
    """Scatter of the kind that the mixture needs, (M, S); (M, 0) for rows."""
    if chunks.scatter.shape[1] == 0:
        return chunks.scatter
    return coarsen(chunks.scatter, chunks.kind, mixture.family.scatter, chunks.means.shape[1])


def squared(differences: F64, factor: F64) -> F64:
    """(x − μ)ᵀ Σ⁻¹ (x − μ), (B,)."""
    whitened = differences @ factor if factor.ndim == 2 else differences * factor
    return np.asarray(np.einsum("ij,ij->i", whitened, whitened))


def no_moments(mixture: GaussianParameters) -> tuple[F64, F64, F64]:
    C, D = mixture.means.shape
    shape = {"norm": (C,), "columns": (C, D), "outer": (C, D, D)}[mixture.family.scatter]
    return np.zeros(C), np.zeros((C, D)), np.zeros(shape)


def add_moments(differences: F64, shares: F64, count: F64, sums: F64, scatter: F64) -> None:
    """Add those of one component to views of its place; overwrites the differences."""
    count += shares.sum()
    sums += shares @ differences
    differences *= np.sqrt(shares)[:, None]
    if scatter.ndim == 3:
        scatter += differences.T @ differences
    else:
        scatter += (differences**2).sum(axis=0 if scatter.ndim == 2 else None)


def per_component(mixture: GaussianParameters) -> F64:
    """Factors of the precisions for each component: (C, D, D), (C, D) or (C, 1)."""
    C, D = mixture.means.shape
    kind = mixture.family.scatter
    if kind == "outer":
        return np.broadcast_to(mixture.factors, (C, D, D))
    return mixture.factors if kind == "columns" else np.broadcast_to(mixture.factors, (C,))[:, None]
