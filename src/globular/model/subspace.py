"""A subspace through the data, and the question which one a clustering needs.

How many directions can k-means with C clusters make use of? Rate–distortion theory answers for Gaussian data: the name
of one of C centres is log C nats, and the lowest error spends them by reverse water-filling. With the variances
λ₁ ≥ λ₂ ≥ … along the principal directions there is a level θ with

    Σᵢ ½ log max(λᵢ / θ, 1) = log C,

and only directions above the level get any of it: below, all clusters have the same coordinate, the mean. Real data are
not Gaussian and clusters reach somewhat below the level, so directions down to θ / MARGIN are kept.

[Cover and Thomas 2006], chapter 10.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from globular.model.statistics import F64
from globular.threads.blas import single_threaded_blas

MARGIN = 6.0
WHOLE_SPECTRUM_UP_TO = 256
"""Columns up to which all directions are computed; above, the leading ones by random projections."""
LEADING = 256
"""Most directions found by random projections; fewer for few clusters, whose centres span few."""


@dataclass(frozen=True, slots=True)
class Subspace:
    """The points origin + basis · z."""

    origin: F64
    """(D,)."""
    basis: F64
    """Orthonormal columns, (D, d)."""

    @property
    def dimension(self) -> int:
        return int(self.basis.shape[1])

    @single_threaded_blas  # the same bits for any number of threads
    def lift(self, points: F64) -> F64:
        """Points of the whole space from their coordinates, (n, d) → (n, D)."""
        return self.origin + points @ self.basis.T


def informative_subspace(rows: F64, origin: F64, n_clusters: int, rng: np.random.Generator) -> Subspace:
    """The principal directions about the origin that `n_clusters` clusters can make use of, from a sample of rows."""
    centered = rows - origin
    exponent = int(np.frexp(max(centered.max(), -centered.min()))[1])
    if abs(exponent) > 40:  # by a power of two, which rounds nothing: values of any size have squares in float32
        centered /= 2.0**exponent
    total = float(np.vdot(centered, centered)) / len(rows)
    variances, directions = _principal(centered, min(LEADING, 16 + 6 * n_clusters), rng)
    return Subspace(origin, np.ascontiguousarray(directions[:, : n_informative(variances, total, n_clusters)]))


@single_threaded_blas  # the same bits for any number of threads
def orthonormal(vectors: F64) -> F64:
    """An orthonormal basis, (D, d), of what some vectors span, (D, ≥ d): by their products, for they are long."""
    lengths, turn = np.linalg.eigh(vectors.T @ vectors)
    kept = lengths > 1e-8 * max(lengths[-1], 1e-300)  # shorter ones are rounding
    basis: F64 = vectors @ (turn[:, kept] / np.sqrt(lengths[kept]))
    return basis


@single_threaded_blas  # the same bits for any number of threads
def _principal(centered: F64, leading: int, rng: np.random.Generator) -> tuple[F64, F64]:
    """Variances along the leading principal directions, largest first, and the directions as columns.

    All of them where columns are few.
    """
    n, n_columns = centered.shape
    if n_columns <= WHOLE_SPECTRUM_UP_TO:
        variances, directions = np.linalg.eigh(np.asarray(centered.T @ centered) / n)
        return np.maximum(variances[::-1], 0.0), directions[:, ::-1]
    from sklearn.utils.extmath import randomized_svd  # takes long to import, and few columns do without

    _, lengths, right = randomized_svd(
        np.asarray(centered, dtype=np.float32),
        n_components=min(leading, n_columns // 2, n),
        n_iter=3,
        random_state=int(rng.integers(2**31)),
    )
    basis, _ = np.linalg.qr(right.T.astype(np.float64))  # float32 leaves it orthogonal to 1e-6 only
    return lengths.astype(np.float64) ** 2 / n, basis


def n_informative(variances: F64, total: float, n_clusters: int) -> int:
    """How many of the directions are above the water level over the margin; at least one.

    `variances` (descending) may be the leading ones alone, `total` is the sum of all.
    """
    if total <= 0:
        return 1
    positive = variances[variances > 1e-12 * total]
    # with the first k directions above the level, its logarithm is their mean log-variance less 2 log C / k
    k = np.arange(1, len(positive) + 1)
    levels = np.exp(np.cumsum(np.log(positive)) / k - 2.0 * np.log(n_clusters) / k)
    above = np.flatnonzero(positive > levels)
    level = levels[above[-1]] if len(above) else positive[0]
    return max(1, int(np.count_nonzero(positive > level / MARGIN)))
