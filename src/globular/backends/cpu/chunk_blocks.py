"""Arithmetic of a Gaussian mixture on a block of chunks: one matrix product each way, for every covariance family.

With φ = (x̄, packed x̄x̄ᵀ + S_A / w_A, 1) the expected log-joint ⟨log p(c, x)⟩_A of a chunk is φ · θ_c (Eq. 11), and the
responsibilities times φ are the moments of the M-step (Eqs. 12–14). Everything is taken about the mean of the data;
where the expanded square would still cancel (components that are tight, flat or far out) the part of the chunk's mean
is computed from differences instead, as in `soft`. The part of the scatter has nothing to cancel with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from globular.kernels.chunks import chunk_features
from globular.model.chunks import Chunks, coarsen, pack, unpack
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64

CANCELLATION_LIMIT = 1e6
"""Largest size of the terms of the expanded square: it loses as many digits, here 6 of 16."""
ABSENT = -1e300
"""Stands for the log-weight of a component of weight zero: −∞ would make NaN in a matrix product."""


@dataclass(slots=True)
class Moments:
    """Sums over blocks of chunks, weighted by the responsibilities."""

    raw: F64
    """Of the features, (C, D + S + 1)."""
    tight_sums: F64
    tight_scatter: F64

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.raw + other.raw, self.tight_sums + other.tight_sums, self.tight_scatter + other.tight_scatter
        )


class ChunkBlocks:
    """A mixture ready to be evaluated on chunks about an offset."""

    def __init__(self, mixture: GaussianParameters, offset: F64) -> None:
        C, D = mixture.means.shape
        self.kind, self.offset = mixture.family.scatter, offset
        self.means = mixture.means - offset
        self.constants = np.maximum(mixture.log_constants, ABSENT)
        self.precisions = packed_precisions(mixture)
        matrices = np.broadcast_to(mixture.precisions, (C, D, D)) if self.kind == "outer" else self.precisions
        pulls = np.einsum("cde,ce->cd", matrices, self.means) if self.kind == "outer" else matrices * self.means
        remoteness = np.einsum("cd,cd->c", pulls, self.means)
        self.coefficients = np.hstack([pulls, -0.5 * self.precisions, (self.constants - 0.5 * remoteness)[:, None]])
        self.tight = np.flatnonzero(self._largest_terms(mixture) > CANCELLATION_LIMIT)
        factors = np.broadcast_to(mixture.factors, (C, D, D)) if self.kind == "outer" else np.sqrt(self.precisions)
        self.tight_factors = factors[self.tight]
        self.width = max(self.coefficients.shape)

    def _largest_terms(self, mixture: GaussianParameters) -> F64:
        """Size of the terms of the expanded square, for rows as far out as the mean or a typical row, (C,)."""
        C, D = self.means.shape
        shares = np.maximum(mixture.weights, 0.0)
        shares = shares / shares.sum() if shares.sum() > 0 else np.full(C, 1.0 / C)
        variances = mixture.covariances
        if self.kind == "outer":
            variances = np.diagonal(variances, axis1=-2, axis2=-1)
        variances = np.broadcast_to(variances[..., None] if self.kind == "norm" else variances, (C, D))
        typical = np.sqrt(shares @ (variances + self.means**2))
        reach = np.maximum(np.abs(self.means), typical)
        return np.asarray((np.abs(self.precisions) * self._square(reach)).sum(axis=1))

    def _square(self, rows: F64) -> F64:
        """Packed second moment of single rows."""
        if self.kind == "norm":
            return (rows**2).sum(axis=1, keepdims=True)
        return rows**2 if self.kind == "columns" else pack(rows[:, :, None] * rows[:, None, :])

    def scatter(self, chunks: Chunks) -> F64:
        """Scatter of the kind that the mixture needs; zero columns wide for single rows."""
        if chunks.scatter.shape[1] == 0:
            return chunks.scatter
        return coarsen(chunks.scatter, chunks.kind, self.kind, self.means.shape[1])

    def features(self, chunks: Chunks) -> F64:
        """φ of the chunks, (B, D + S + 1)."""
        features = np.empty((len(chunks), self.coefficients.shape[1]))
        chunk_features(chunks.means, self.offset, chunks.weights, self.scatter(chunks), features)
        return features

    def log_joint(self, chunks: Chunks, features: F64) -> F64:
        """⟨log p(c, x)⟩ over each chunk, (B, C)."""
        joint = features @ self.coefficients.T
        if len(self.tight):
            spread = self._spread(chunks)
            for component, factor in zip(self.tight, self.tight_factors, strict=True):
                differences = features[:, : chunks.means.shape[1]] - self.means[component]
                whitened = differences @ factor if self.kind == "outer" else differences * factor
                squared = np.einsum("ij,ij->i", whitened, whitened)
                squared += np.maximum(spread @ self.precisions[component, : spread.shape[1]], 0.0)
                joint[:, component] = self.constants[component] - 0.5 * squared
        return joint

    def _spread(self, chunks: Chunks) -> F64:
        """Scatter per unit weight, (B, S); zero columns wide for single rows."""
        weights = np.where(chunks.weights > 0, chunks.weights, 1.0)[:, None]
        return np.where(chunks.weights[:, None] > 0, self.scatter(chunks) / weights, 0.0)

    def no_moments(self) -> Moments:
        D, S = self.means.shape[1], self.precisions.shape[1]
        return Moments(np.zeros_like(self.coefficients), np.zeros((len(self.tight), D)), np.zeros((len(self.tight), S)))

    def add_moments(self, total: Moments, chunks: Chunks, features: F64, shares: F64) -> None:
        """Add a block, given w q(c) of its chunks."""
        total.raw += shares.T @ features
        if len(self.tight):
            spread = self._spread(chunks)
            for place, component in enumerate(self.tight):
                share = shares[:, component]
                differences = features[:, : chunks.means.shape[1]] - self.means[component]
                total.tight_sums[place] += share @ differences
                second = self._weighted_square(differences, share)
                second[: spread.shape[1]] += share @ spread
                total.tight_scatter[place] += second

    def _weighted_square(self, differences: F64, share: F64) -> F64:
        """Σ share · packed square, (S,)."""
        if self.kind == "outer":
            return pack(((differences * share[:, None]).T @ differences)[None])[0]
        squares = share @ differences**2
        return squares if self.kind == "columns" else squares.sum(keepdims=True)

    def statistics(self, total: Moments) -> tuple[F64, F64, F64]:
        """counts, sums and scatter about the means, as in `SoftStatistics`."""
        D = self.means.shape[1]
        first, second, counts = total.raw[:, :D], total.raw[:, D:-1], total.raw[:, -1].copy()
        sums = first - counts[:, None] * self.means
        # Σ (x − μ)(x − μ)ᵀ = Σ x xᵀ − μ (Σ x)ᵀ − (Σ (x − μ)) μᵀ
        if self.kind == "outer":
            crossed = self.means[:, :, None] * first[:, None, :] + sums[:, :, None] * self.means[:, None, :]
            scatter = second - pack(crossed)
        else:
            crossed = self.means * (first + sums)
            scatter = second - (crossed.sum(axis=1, keepdims=True) if self.kind == "norm" else crossed)
        sums[self.tight], scatter[self.tight] = total.tight_sums, total.tight_scatter
        if self.kind != "outer":
            scatter = np.maximum(scatter, 0.0)
        return counts, sums, unpack(scatter, self.kind, D)


def packed_precisions(mixture: GaussianParameters) -> F64:
    """Σ⁻¹ packed, entries off the diagonal doubled, (C, S)."""
    C, D = mixture.means.shape
    kind = mixture.family.scatter
    if kind == "norm":
        return np.broadcast_to(mixture.precisions, (C,))[:, None].copy()
    if kind == "columns":
        return mixture.precisions
    packed = pack(np.broadcast_to(mixture.precisions, (C, D, D)))
    rows, columns = np.triu_indices(D)
    packed[:, rows != columns] *= 2.0
    return packed
