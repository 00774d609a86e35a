"""Arithmetic of a Gaussian mixture on a block of chunks or rows: one matrix product each way, for every family.

With φ = (x̄, packed x̄x̄ᵀ + S_A / w_A, 1) the expected log-joint ⟨log p(c, x)⟩_A of a chunk is φ · θ_c (Eq. 11), and the
responsibilities times φ are the moments of the M-step (Eqs. 12–14). A row is a chunk without scatter. Everything is
taken about an offset near the mean of the data; where the expanded square would still cancel (components that are
tight, flat or far out) the part of the chunk's mean is computed from differences instead. The part of the scatter has
nothing to cancel with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from globular.kernels.expect import softmax_rows
from globular.model.chunks import Chunks, ShareRule
from globular.model.covariances import TightComponents
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics

_BLOCK_ENTRIES = 2**17
"""Numbers in the widest array of a block: a megabyte, which the cache holds."""
_NONE = np.empty(0)
CANCELLATION_LIMIT = 1e6
"""Largest size of the terms of the expanded square: it loses as many digits, here 6 of 16."""
ABSENT = -1e300
"""Stands for the log-weight of a component of weight zero: −∞ would make NaN in a matrix product."""


def block_size(width: int) -> int:
    """Chunks or rows that go together, `width` numbers each; nothing but the mixture decides it."""
    return min(max(_BLOCK_ENTRIES // width, 32), 4096)


@dataclass(slots=True)
class Moments:
    """Sums over blocks of chunks, weighted by the responsibilities."""

    raw: F64
    """Of the features, (C, D + S + 1)."""
    tight_sums: F64
    """Sums of the tight components about their means, (T, D)."""
    tight_scatter: F64
    """Second moments of the tight components, (T, 1), (T, D) or (T, D, D)."""
    bound: float = 0.0
    weight: float = 0.0

    def add(self, other: Moments) -> None:
        """Add those of other blocks."""
        self.raw += other.raw
        self.tight_sums += other.tight_sums
        self.tight_scatter += other.tight_scatter
        self.bound += other.bound
        self.weight += other.weight


class ChunkBlocks:
    """A mixture ready to be evaluated on chunks about an offset.

    `packed` takes products of features in any number of columns: where these are made once, they are the least work.
    """

    def __init__(self, mixture: GaussianParameters, offset: F64, *, packed: bool = False) -> None:
        self.kind, self.offset = mixture.family.scatter, offset
        self.means = mixture.means - offset
        self.constants = np.maximum(mixture.log_constants, ABSENT)
        typical = self._typical(mixture)
        self.precisions, self.coefficients, sizes = self.kind.linear(
            mixture.factors, self.means, self.constants, typical, packed=packed
        )
        tight = np.flatnonzero(sizes > CANCELLATION_LIMIT)
        some = tight if len(tight) else slice(0)  # mostly there are none, and slices cost nothing
        factors = mixture.each(mixture.factors)[some]
        self.tight = TightComponents(tight, self.means[some], factors, self.precisions[some], self.constants[some])
        self.width = max(self.coefficients.shape)

    def _typical(self, mixture: GaussianParameters) -> F64:
        """How far out a typical row is, (D,)."""
        C = len(self.means)
        shares = np.maximum(mixture.weights, 0.0)
        total = shares.sum()
        shares = shares / total if total > 0 else np.full(C, 1.0 / C)
        return np.sqrt(shares @ (mixture.variances() + self.means**2))

    def scatter(self, chunks: Chunks) -> F64:
        """Scatter of the kind that the mixture needs; zero columns wide for single rows."""
        if chunks.scatter.shape[1] == 0:
            return chunks.scatter
        return chunks.kind.coarsen(chunks.scatter, self.kind, self.means.shape[1])

    def features(self, chunks: Chunks) -> F64:
        """φ of the chunks, (B, D + S + 1)."""
        features = np.empty((len(chunks), self.coefficients.shape[1]))
        self.kind.features(chunks.means, self.offset, chunks.weights, self.scatter(chunks), features)
        return features

    def log_joint(self, chunks: Chunks, features: F64) -> F64:
        """⟨log p(c, x)⟩ over each chunk, (B, C)."""
        joint = features @ self.coefficients.T
        if len(self.tight.components):
            self.kind.direct_joint(features, self._spread(chunks), self.tight, joint)
        return joint

    def _spread(self, chunks: Chunks) -> F64:
        """Scatter per unit weight, (B, S); zero columns wide for single rows."""
        weights = np.where(chunks.weights > 0, chunks.weights, 1.0)[:, None]
        return np.where(chunks.weights[:, None] > 0, self.scatter(chunks) / weights, 0.0)

    def no_moments(self) -> Moments:
        T, D = self.tight.means.shape
        return Moments(np.zeros_like(self.coefficients), np.zeros((T, D)), np.zeros(self.kind.shape(T, D)))

    def e_step(
        self,
        total: Moments,
        chunks: Chunks,
        weights: F64 | None = None,
        rule: ShareRule = "optimal",
        features: F64 | None = None,
    ) -> None:
        """Add a block of chunks, which count by their own weights unless others are given.

        `features` are those of the chunks, where somebody has them already.
        """
        weights = chunks.weights if weights is None else weights
        features = self.features(chunks) if features is None else features
        shares, densities = self._shares(chunks, features, weights, rule)
        total.raw += shares.T @ features
        if len(self.tight.components):
            self.kind.direct_moments(
                features, self._spread(chunks), shares, self.tight, total.tight_sums, total.tight_scatter
            )
        total.bound += float(weights @ densities)
        total.weight += float(weights.sum())

    def _shares(self, chunks: Chunks, features: F64, weights: F64, rule: ShareRule) -> tuple[F64, F64]:
        """w q(c), (B, C), and each chunk's part of the bound per unit weight, (B,)."""
        joint = self.log_joint(chunks, features)
        densities = np.empty(len(chunks))
        if rule == "optimal":
            softmax_rows(joint, weights, densities)  # Eq. 10
            return joint, densities
        bare = Chunks(chunks.weights, chunks.means, np.empty((len(chunks), 0)), chunks.kind)
        posterior = self.log_joint(bare, self.features(bare))
        joint -= posterior  # what the scatter takes off
        softmax_rows(posterior, _NONE, densities)
        # Eq. 9 with q = p(s | x̄): Σ q (⟨log p(s, x)⟩ − log q) = log p(x̄) + Σ q (⟨log p(s, x)⟩ − log p(s, x̄))
        densities += np.einsum("ij,ij->i", posterior, joint)
        posterior *= weights[:, None]
        return posterior, densities

    def statistics(self, total: Moments, n_chunks: int) -> SoftStatistics:
        """What the moments of `n_chunks` chunks say about the means of the mixture."""
        counts = total.raw[:, -1].copy()
        sums, scatter = total.tight_sums, total.tight_scatter
        if len(sums) < len(counts):
            sums, scatter = self.kind.central(total.raw, self.means)
            sums[self.tight.components], scatter[self.tight.components] = total.tight_sums, total.tight_scatter
        return SoftStatistics(counts, sums, scatter, total.bound, total.weight, n_chunks * len(counts))
