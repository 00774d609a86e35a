"""E-steps on few chunks that many small mixtures are evaluated on: trials of splits ask for thousands of such steps.

Cells keep their features, which do not depend on the mixture: a step is a matrix product each way. Rows would need too
much memory for that; theirs come from differences, component by component.
"""

from __future__ import annotations

import numpy as np

from globular.backends.cpu.chunk_blocks import ABSENT, ChunkBlocks
from globular.kernels.soft import softmax_rows
from globular.model.chunks import Chunks
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics

SMALLEST_SHARE = float(np.exp(-16.0))
"""Smaller responsibilities count, but move nothing."""


class HeldChunks:
    """See `LocalShard.chunk_pass`."""

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        total = float(chunks.weights.sum())
        self._offset = chunks.weights @ chunks.means / total if total > 0 else np.zeros(chunks.means.shape[1])
        self._features: dict[int, F64] = {}
        """By their width: mixtures of different families may look at the same cells."""

    def e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        """Statistics of all chunks."""
        if self.chunks.scatter.shape[1] == 0:
            return _rows_step(self.chunks, mixture)
        blocks = ChunkBlocks(mixture, self._offset, packed=True)
        width = blocks.coefficients.shape[1]
        if width not in self._features:
            self._features[width] = blocks.features(self.chunks)
        total = blocks.no_moments()
        blocks.e_step(total, self.chunks, features=self._features[width])
        return blocks.statistics(total, len(self.chunks))


def _rows_step(rows: Chunks, mixture: GaussianParameters) -> SoftStatistics:
    """Rows alone. O(M·C·S)."""
    C, weights = mixture.n_components, rows.weights
    factors = per_component(mixture)
    q, densities = np.empty((len(rows), C)), np.empty(len(rows))
    for c in range(C):
        q[:, c] = squared(rows.means - mixture.means[c], factors[c])
    q *= -0.5
    q += np.maximum(mixture.log_constants, ABSENT)
    softmax_rows(q, weights, densities)
    counts, sums, scatter = no_moments(mixture)
    for c in range(C):
        held = np.flatnonzero(q[:, c] > SMALLEST_SHARE * weights)
        place = slice(c, c + 1)
        add_moments(rows.means[held] - mixture.means[c], q[held, c], counts[place], sums[place], scatter[place])
    return SoftStatistics(q.sum(axis=0), sums, scatter, float(weights @ densities), float(weights.sum()), len(rows) * C)


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
