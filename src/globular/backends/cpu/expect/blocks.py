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

from globular.kernels.chunks import chunk_features, moments_about, packed_coefficients
from globular.kernels.soft import direct_joint, direct_moments, softmax_rows
from globular.model.chunks import Chunks, ShareRule, coarsen, pack, unpack, upper_triangle
from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics

_BLOCK_ENTRIES = 2**17
"""Numbers in the widest array of a block: a megabyte, which the cache holds."""
_NONE = np.empty(0)
CANCELLATION_LIMIT = 1e6
"""Largest size of the terms of the expanded square: it loses as many digits, here 6 of 16."""
WIDE = 40
"""Columns from which covariance matrices are all applied to differences: products of that size need no packing, and the
packed moments of a block would not fit the cache."""
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
    """Of the tight components, about their means, (T, D) …"""
    tight_scatter: F64
    """… and (T, S), matrices not packed."""
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
        C, D = mixture.means.shape
        self.kind, self.offset = mixture.family.scatter, offset
        self.means = mixture.means - offset
        self.constants = np.maximum(mixture.log_constants, ABSENT)
        self.wide = self.kind == "outer" and D >= WIDE and not packed
        if self.wide:
            self.precisions = _packed(mixture.precisions, self.kind, C)
            self.coefficients, self.tight = np.zeros((C, D + 1)), np.arange(C)
        elif self.kind == "outer":
            S, sizes = D * (D + 1) // 2, np.empty(C)
            self.precisions, self.coefficients = np.empty((C, S)), np.empty((C, D + S + 1))
            packed_coefficients(
                mixture.factors.reshape(-1, D, D), self.means, self.constants, self._typical(mixture),
                self.precisions, self.coefficients, sizes, np.empty(D),
            )  # fmt: skip
            self.tight = np.flatnonzero(sizes > CANCELLATION_LIMIT)
        else:
            self.precisions = _packed(mixture.precisions, self.kind, C)
            self.coefficients = self._coefficients()
            self.tight = np.flatnonzero(self._largest_terms(mixture) > CANCELLATION_LIMIT)
        self._tight_means, self._tight_constants = self.means[self.tight], self.constants[self.tight]
        self._tight_precisions = self.precisions[self.tight]
        self._tight_factors = _every(mixture.factors, C)[self.tight] if self.kind == "outer" else _NONE
        self.width = max(self.coefficients.shape)

    def _coefficients(self) -> F64:
        """θ, (C, D + S + 1)."""
        pulls = self.precisions * self.means
        remoteness = np.einsum("cd,cd->c", pulls, self.means)
        return np.hstack([pulls, -0.5 * self.precisions, (self.constants - 0.5 * remoteness)[:, None]])

    def _largest_terms(self, mixture: GaussianParameters) -> F64:
        """Size of the terms of the expanded square, for rows as far out as the mean or a typical row, (C,)."""
        squares = np.maximum(np.abs(self.means), self._typical(mixture)) ** 2
        if self.kind == "norm":
            squares = squares.sum(axis=1, keepdims=True)
        return np.asarray((self.precisions * squares).sum(axis=1))

    def _typical(self, mixture: GaussianParameters) -> F64:
        """How far out a typical row is, (D,)."""
        C = len(self.means)
        shares = np.maximum(mixture.weights, 0.0)
        shares = shares / shares.sum() if shares.sum() > 0 else np.full(C, 1.0 / C)
        variances = mixture.covariances
        if self.kind == "outer":
            variances = np.diagonal(variances, axis1=-2, axis2=-1)
        elif self.kind == "norm":
            variances = variances[..., None]
        return np.sqrt(shares @ (variances + self.means**2))

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
        if not len(self.tight):
            return joint
        spread = self._spread(chunks)
        if self.kind != "outer":
            direct_joint(
                features, spread, self._tight_means, self._tight_precisions, self._tight_constants, self.tight, joint
            )
            return joint
        for place, component in enumerate(self.tight):
            whitened = (features[:, : self.means.shape[1]] - self.means[component]) @ self._tight_factors[place]
            squared = np.einsum("ij,ij->i", whitened, whitened)
            squared += np.maximum(spread @ self.precisions[component, : spread.shape[1]], 0.0)
            joint[:, component] = self.constants[component] - 0.5 * squared
        return joint

    def _spread(self, chunks: Chunks) -> F64:
        """Scatter per unit weight, (B, S); zero columns wide for single rows."""
        weights = np.where(chunks.weights > 0, chunks.weights, 1.0)[:, None]
        return np.where(chunks.weights[:, None] > 0, self.scatter(chunks) / weights, 0.0)

    def no_moments(self) -> Moments:
        T, D = self._tight_means.shape
        shape = (T, D, D) if self.kind == "outer" else (T, self.precisions.shape[1])
        return Moments(np.zeros_like(self.coefficients), np.zeros((T, D)), np.zeros(shape))

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
        if len(self.tight):
            self._add_tight(total, features, self._spread(chunks), shares)
        total.bound += float(weights @ densities)
        total.weight += float(weights.sum())

    def _add_tight(self, total: Moments, features: F64, spread: F64, shares: F64) -> None:
        """Moments of the tight components, from differences."""
        sums, scatter = total.tight_sums, total.tight_scatter
        if self.kind != "outer":
            direct_moments(features, spread, shares, self._tight_means, self.tight, sums, scatter)
            return
        D = self.means.shape[1]
        for place, component in enumerate(self.tight):
            share = shares[:, component]
            differences = features[:, :D] - self.means[component]
            sums[place] += share @ differences
            if spread.shape[1]:
                scatter[place] += unpack((share @ spread)[None], self.kind, D)[0]
            held = np.flatnonzero(share)  # far components hold few: the others underflow to zero
            if 2 * len(held) < len(share):
                differences, share = differences[held], share[held]
            differences *= np.sqrt(share)[:, None]
            scatter[place] += differences.T @ differences

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
        """What the moments of so many chunks say about the means of the mixture."""
        D = self.means.shape[1]
        counts = total.raw[:, -1].copy()
        if self.kind == "outer":
            sums, scatter = np.empty((len(counts), D)), np.empty((len(counts), D, D))
            if not self.wide:
                moments_about(total.raw, self.means, sums, scatter)
        else:
            first, second = total.raw[:, :D], total.raw[:, D:-1]
            sums = first - counts[:, None] * self.means
            crossed = self.means * (first + sums)
            scatter = np.maximum(second - (crossed.sum(axis=1, keepdims=True) if self.kind == "norm" else crossed), 0.0)
        sums[self.tight], scatter[self.tight] = total.tight_sums, total.tight_scatter
        if self.kind == "norm":
            scatter = scatter[:, 0]
        return SoftStatistics(counts, sums, scatter, total.bound, total.weight, n_chunks * len(counts))


def packed_precisions(mixture: GaussianParameters) -> F64:
    """Σ⁻¹ packed, entries off the diagonal doubled, (C, S)."""
    return _packed(mixture.precisions, mixture.family.scatter, mixture.n_components)


def _packed(precisions: F64, kind: ScatterKind, C: int) -> F64:
    if kind == "norm":
        return np.broadcast_to(precisions, (C,))[:, None].copy()
    if kind == "columns":
        return precisions
    packed = pack(_every(precisions, C))
    rows, columns = upper_triangle(precisions.shape[-1])
    packed *= np.where(rows != columns, 2.0, 1.0)
    return packed


def _every(matrices: F64, C: int) -> F64:
    """One matrix for every component, (C, D, D), where there is one for all."""
    return matrices if matrices.ndim == 3 else np.broadcast_to(matrices, (C, *matrices.shape))
