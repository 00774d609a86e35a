"""Mixtures of factor analysers: Gaussians whose covariances are of low rank beside noise of the columns.

Of a component x = μ + Λᵀ z + ε, z ~ N(0, I) with q factors and ε ~ N(0, diag ψ), so Σ = Λᵀ Λ + diag ψ; Λ is (q, D).
With M = I + Λ diag(1/ψ) Λᵀ = L Lᵀ and the *directions* V = L⁻¹ Λ diag(1/ψ), (q, D), the Woodbury identity reads

    Σ⁻¹ = diag(1/ψ) − Vᵀ V,    log |Σ| = Σ log ψ + 2 Σ log L_jj,    E[z | x] = L⁻ᵀ V (x − μ)

so with y = x − μ and u = V y a density costs D q multiplications, −2 log N = y·(y/ψ) − u·u + …, and nothing is D × D.

Where the noise of columns is correlated, in the same way for all components, all of this is about other coordinates
(`model.coordinates`), in which it is not: parameters, statistics and M-steps are those of these.

*M-step* (Ghahramani & Hinton 1996, Tipping & Bishop 1999). Given responsibilities r the mean is Σ r x / Σ r, whatever
the covariance. Let S be the covariance of the rows about it, under r. One step of EM for the factors of each component
needs of S the diagonal and A = V S, (q, D), alone:

    Λ ← L (I + A Vᵀ)⁻¹ A,    ψ ← diag S − Σ_j ((I + A Vᵀ)⁻¹ A)_j A_j

Both raise Σ r log p(c, x), so the log-likelihood, or its bound from few components a row, does not fall. Passes return
Σ r u yᵀ about the old means, from which A follows: u is linear in y.

*Start*: the principal components of cells, and what the noise of all cells shares. Both come from E-steps with one
component a row, so that statistics are those of cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from globular.lazy import cached_property
from globular.model.coordinates import Coordinates
from globular.model.covariances import FAMILIES, CentralMoments, CovarianceLimits
from globular.model.gaussian import Components, GaussianParameters, draw_by_component, mixing_weights
from globular.model.statistics import F64, I64, SoftStatistics
from globular.threads.blas import single_threaded_blas

NO_WEIGHT_COST = 1e300
"""Stands for −2 log of a weight of zero: with infinity differences would be no numbers."""
Pooling = Callable[[F64, F64], F64]
NOISES: dict[str, Pooling] = {
    "diag": lambda noise, shares: noise,
    "spherical": lambda noise, shares: noise.mean(axis=1, keepdims=True),
    "tied_diag": lambda noise, shares: shares[None, :] @ noise,
    "tied_spherical": lambda noise, shares: (shares[None, :] @ noise).mean(axis=1, keepdims=True),
}
"""What components and columns have one variance of the noise, given that of each and the weights of the components."""
INDEPENDENT_ROWS = 3.0
"""Rows for each column, as it were, that say of the noise within cells that columns are independent: D² / 2 numbers are
learnt from N rows, and in few rows columns seem to have more to do with each other than they have."""
NARROWEST = 1e-2
"""Share of the average variance below which a component says no more of the shared noise; smaller = a few rows that are
all but equal may decide alone."""
MOST_SIGNAL = 1e13
"""Largest trace of Λ diag(1/ψ) Λᵀ; larger = less noise in components whose rows lie in a plane. From 1e14 on the one in
I + Λ diag(1/ψ) Λᵀ may be lost in rounding, and there is no triangle L."""
FAINT = 1e-3
"""Variance along a factor that a cell has no rows for, relative to the noise: EM cannot bring back one that is zero."""


@dataclass(slots=True)
class LowRankStatistics(SoftStatistics):
    """Sums of an E-step; `scatter` has Σ w q (x − μ)², (C, D)."""

    cross: F64 = field(default_factory=lambda: np.empty((0, 0, 0)))
    """Σ w q u (x − μ)ᵀ with u = V (x − μ), (C, q, D)."""


@dataclass(frozen=True, eq=False)
class LowRankParameters(Components):
    """p(x) = Σ_c π_c N(x; μ_c, Λ_cᵀ Λ_c + diag ψ_c), or this of the `coordinates` of x, times their determinant.

    Arrays are float64 and not to be written to.
    """

    weights: F64
    """π, (C,); sums to one."""
    means: F64
    """μ, (C, D)."""
    loadings: F64
    """Λ, (C, q, D)."""
    noise: F64
    """ψ, (C, D); positive."""
    coordinates: Coordinates | None = None
    """Those that means, loadings and noise are in; None for the columns themselves."""

    @property
    def n_factors(self) -> int:
        return int(self.loadings.shape[1])

    @cached_property
    def precisions(self) -> F64:
        """1/ψ, (C, D)."""
        return 1.0 / self.noise

    @cached_property
    def triangles(self) -> F64:
        """L, (C, q, q)."""
        scaled = self.loadings * np.sqrt(self.precisions)[:, None, :]
        return cast(F64, np.linalg.cholesky(np.eye(self.n_factors) + scaled @ scaled.transpose(0, 2, 1)))

    @cached_property
    def directions(self) -> F64:
        """V, (C, q, D)."""
        return np.linalg.inv(self.triangles) @ (self.loadings * self.precisions[:, None, :])

    @cached_property
    def biases(self) -> F64:
        """−2 log π_c + log |2π Σ_c|, (C,): −2 log p(c, x) is this plus y·(y/ψ) − u·u."""
        diagonals = np.diagonal(self.triangles, axis1=1, axis2=2)
        determinants = np.log(self.noise).sum(axis=1) + 2.0 * np.log(diagonals).sum(axis=1)
        volume = 0.0 if self.coordinates is None else self.coordinates.log_volume
        constant = self.n_features * math.log(2 * math.pi) - 2.0 * volume
        return np.minimum(determinants + constant - 2.0 * self.log_shares, NO_WEIGHT_COST)

    @cached_property
    def columns(self) -> GaussianParameters:
        """The same columns without their correlations: what nominates components."""
        variances = self.noise + np.einsum("cqd,cqd->cd", self.loadings, self.loadings)
        return GaussianParameters(self.weights, self.means, variances, "diag")

    def expected(self, found: LowRankStatistics) -> F64:
        """Σ w q log p(c, x) of the rows that an E-step of this mixture gave each component, (C,)."""
        squares = np.einsum("cd,cd->c", found.scatter, self.precisions)
        squares -= np.einsum("cqd,cqd->c", self.directions, found.cross)
        return -0.5 * (found.counts * self.biases + squares)

    def noisier(self, variance: F64) -> LowRankParameters:
        """The mixture of rows to which noise of these variances of the columns, (1,) or (D,), has been added.

        In coordinates this noise is correlated, of which only the variances are taken: a mixture to search with.
        """
        if self.coordinates is not None:
            variance = np.broadcast_to(variance, (self.n_features,)) @ np.square(self.coordinates.forward)
        return replace(self, noise=self.noise + variance)

    def as_numpy(self) -> LowRankParameters:
        """The same with arrays of NumPy for parameters, wherever these lie; itself where they are."""
        own = self.weights, self.means, self.loadings, self.noise
        if all(isinstance(each, np.ndarray) for each in own):
            return self
        weights, means, loadings, noise = map(np.asarray, own)
        return LowRankParameters(weights, means, loadings, noise, self.coordinates)

    def in_columns(self) -> LowRankParameters:
        """Means and loadings of the columns themselves, and the variances of every column given those before it."""
        at = self.coordinates
        if at is None:
            return self
        return LowRankParameters(
            self.weights, at.back(self.means), at.vectors_back(self.loadings),
            self.noise * np.square(at.scales),
        )  # fmt: skip

    def to_coordinates(self, regressions: F64) -> LowRankParameters:
        """What `in_columns` came from, but for the scales of the coordinates: those of the mean noise."""
        at = Coordinates.of_regressions(self.weights @ self.means, regressions, self.weights @ self.noise)
        return LowRankParameters(
            self.weights, at.to(self.means), at.vectors_to(self.loadings),
            self.noise / np.square(at.scales), at,
        )  # fmt: skip

    def covariances(self, added: F64 | float = 0.0) -> F64:
        """The matrices of the columns themselves, (C, D, D), with variances added to those of the columns."""
        matrices = self.loadings.transpose(0, 2, 1) @ self.loadings + self.noise[:, :, None] * np.eye(self.n_features)
        if self.coordinates is not None:
            matrices = self.coordinates.backward.T @ matrices @ self.coordinates.backward
        return (matrices + matrices.transpose(0, 2, 1)) / 2 + added * np.eye(self.n_features)

    def holds(self, *arrays: F64) -> bool:
        """Whether its arrays are these, number by number."""
        own = self.weights, self.means, self.loadings, self.noise
        return all(np.array_equal(one, other) for one, other in zip(own, arrays, strict=True))

    def n_parameters(self, noise_type: str) -> int:
        """Free parameters, for information criteria: loadings count up to rotations."""
        C, q, D = self.loadings.shape
        noise = NOISES[noise_type](np.ones((C, D)), np.full(C, 1.0 / C)).size
        if self.coordinates is not None:
            noise += D * (D - 1) // 2
        return C * (D + D * q - q * (q - 1) // 2) + noise + C - 1

    def factors(self, inner: F64, components: I64) -> F64:
        """E[z | x] from u = V (x − μ) of rows and the component of each, (n, q)."""
        turned = self.triangles.transpose(0, 2, 1)[components]
        return np.asarray(np.linalg.solve(turned, inner[:, :, None])[:, :, 0])

    def sample(self, n_samples: int, random: np.random.RandomState) -> tuple[F64, I64]:
        """Draw rows, grouped by component, and their components."""

        def draw(c: int, n: int) -> F64:
            along = random.standard_normal((n, self.n_factors)) @ self.loadings[c]
            drawn = self.means[c] + along + random.standard_normal((n, self.n_features)) * np.sqrt(self.noise[c])
            return drawn if self.coordinates is None else self.coordinates.back(drawn)

        return draw_by_component(self.weights, n_samples, random, draw)


def isotropic_factors(
    means: F64, variance: float, n_factors: int, coordinates: Coordinates | None = None
) -> LowRankParameters:
    """Equal weights and σ² I around the given means: factors without loadings."""
    C, nothing = len(means), np.zeros_like(means)  # where the means are, perhaps on a card
    no_loadings = nothing[:, None, :] + np.zeros((n_factors, 1))
    return LowRankParameters(np.full(C, 1.0 / C), means, no_loadings, nothing + variance, coordinates)


@single_threaded_blas  # on matrices this small threads only wait for each other; and the same bits for any number
def low_rank_m_step(
    mixture: LowRankParameters, found: LowRankStatistics, limits: CovarianceLimits, noise_type: str
) -> LowRankParameters:
    """Weights and means of largest expected log-likelihood, and loadings and noise that do not lower it.

    A component without weight keeps its mean and loadings.
    """
    X, _, residuals = left_by_factors(mixture, found)
    loadings = np.where(found.filled[:, None, None], mixture.triangles @ X, mixture.loadings)
    return _updated(mixture, found, loadings, residuals, mixture.noise, limits, noise_type)


def left_by_factors(mixture: LowRankParameters, found: LowRankStatistics) -> tuple[F64, F64, F64]:
    """X = (I + A Vᵀ)⁻¹ A and A, (C, q, D), and the diagonal of S − Xᵀ A, (C, D): noise beside new factors."""
    variances, A = about_new_means(mixture, found)
    inner = np.eye(mixture.n_factors) + symmetric(A @ mixture.directions.transpose(0, 2, 1))
    X = cast(F64, np.linalg.solve(inner, A))
    return X, A, variances - np.einsum("cqd,cqd->cd", X, A)


def about_new_means(mixture: LowRankParameters, found: LowRankStatistics) -> tuple[F64, F64]:
    """diag S, (C, D), and A = V S, (C, q, D), of the rows about their means; 0 without weight."""
    filled, shifts = found.filled, found.shifts
    counts = np.where(filled, found.counts, 1.0)
    variances = np.maximum(found.scatter / counts[:, None] - shifts**2, 0.0)
    moved = np.einsum("cqd,cd->cq", mixture.directions, shifts)
    A = found.cross / counts[:, None, None] - moved[:, :, None] * shifts[:, None, :]
    return np.where(filled[:, None], variances, 0.0), np.where(filled[:, None, None], A, 0.0)


def symmetric(matrices: F64) -> F64:
    """The matrices without what rounding has made different on both sides of the diagonal."""
    return (matrices + matrices.transpose(0, 2, 1)) / 2


def _updated(
    mixture: LowRankParameters, found: LowRankStatistics, loadings: F64, residuals: F64, previous: F64,
    limits: CovarianceLimits, noise_type: str,
) -> LowRankParameters:  # fmt: skip
    """New weights, means and loadings, and the noise of what these leave, within the limits."""
    filled, pooling = found.filled, NOISES[noise_type]
    shares = np.where(filled, found.counts, 0.0)
    pooled = pooling(np.maximum(residuals, 0.0), shares / shares.sum())
    reg_covar, smallest = np.broadcast_to(limits.reg_covar, limits.smallest.shape), limits.smallest
    if pooled.shape[1] == 1:
        reg_covar, smallest = reg_covar.mean(keepdims=True), smallest.mean(keepdims=True)
    limited = np.maximum(pooled + reg_covar, smallest)
    too_strong = np.maximum((np.square(loadings) / limited[:, None, :]).sum(axis=2).sum(axis=1) / MOST_SIGNAL, 1.0)
    limited = limited * (too_strong[:, None] if len(limited) > 1 else too_strong.max())
    if len(limited) > 1:  # where all components share it, so do those without weight
        limited = np.where(filled[:, None], limited, previous)
    weights, means = mixing_weights(found.counts, found.total_weight), mixture.means + found.shifts
    noise = np.broadcast_to(limited, previous.shape).copy()
    return replace(mixture, weights=weights, means=means, loadings=loadings, noise=noise)


@single_threaded_blas
def merged(mixture: LowRankParameters, a: I64, b: I64) -> LowRankParameters:
    """One component with the moments of both in the place of each pair, of as many factors.

    The q longest of the 2q + 1 directions of both, in units of the noise, are its factors; noise takes up the others.
    """
    both = np.stack([a, b], axis=1)
    weights, means, loadings, noise = (
        each[both] for each in (mixture.weights, mixture.means, mixture.loadings, mixture.noise)
    )
    shares = weights / weights.sum(axis=1, keepdims=True)
    n, _, q, D = loadings.shape
    apart = np.sqrt(shares.prod(axis=1))[:, None] * (means[:, 0] - means[:, 1])
    spread = (np.sqrt(shares)[:, :, None, None] * loadings).reshape(n, 2 * q, D)
    spread = np.concatenate([spread, apart[:, None, :]], axis=1)  # directions of both, and that from one to the other
    left = np.einsum("pk,pkd->pd", shares, noise)
    scaled = spread / np.sqrt(left)[:, None, :]
    _, axes = np.linalg.eigh(scaled @ scaled.transpose(0, 2, 1))
    spread = axes.transpose(0, 2, 1) @ spread
    noise = left + np.square(spread[:, :-q]).sum(axis=1)
    means = np.einsum("pk,pkd->pd", shares, means)
    return replace(mixture, weights=weights.sum(axis=1), means=means, loadings=spread[:, -q:], noise=noise)


@single_threaded_blas
def probing_directions(means: F64, bases: F64, coordinates: Coordinates | None = None) -> LowRankParameters:
    """A mixture whose directions V are orthonormal bases, (C, q, D), but for a factor: its E-step gives S V."""
    return replace(isotropic_factors(means, 1.0, bases.shape[1], coordinates), loadings=bases)


@single_threaded_blas
def power_step(mixture: LowRankParameters, found: LowRankStatistics) -> F64:
    """Orthonormal bases of S V, (C, q, D), closer to the principal directions of each component than V."""
    _, A = about_new_means(mixture, found)
    # a cell of few rows has fewer directions than are asked for: the others stay what they are
    faint = 1e-12 * np.sqrt(np.einsum("cqd,cqd->c", A, A))[:, None, None] + 1e-300
    bases, _ = np.linalg.qr((A + faint * mixture.directions).transpose(0, 2, 1))
    return bases.transpose(0, 2, 1)


@single_threaded_blas
def principal_start(
    mixture: LowRankParameters, found: LowRankStatistics, limits: CovarianceLimits, noise_type: str
) -> LowRankParameters:
    """Probabilistic PCA of every cell within the span of the directions that its E-step had (`probing_directions`)."""
    variances, A = about_new_means(mixture, found)
    C, q, D = A.shape
    lengths = np.sqrt(np.einsum("cqd,cqd->cq", mixture.directions, mixture.directions))
    bases = mixture.directions / lengths[:, :, None]
    values, vectors = np.linalg.eigh(symmetric((A / lengths[:, :, None]) @ bases.transpose(0, 2, 1)))
    axes = vectors.transpose(0, 2, 1) @ bases  # of the variances `values`, (C, q, D)
    floor = float(np.mean(limits.reg_covar) + np.mean(limits.smallest))
    rest = np.maximum((variances.sum(axis=1) - values.sum(axis=1)) / max(1, D - q), floor)[:, None]
    loadings = axes * np.sqrt(np.maximum(values - rest, FAINT * rest))[:, :, None]
    residuals = variances - np.einsum("cqd,cqd->cd", loadings, loadings)
    return _updated(mixture, found, loadings, residuals, np.broadcast_to(rest, (C, D)), limits, noise_type)


@single_threaded_blas
def left_of_scatter(mixture: LowRankParameters, found: LowRankStatistics) -> tuple[F64, F64]:
    """What every component says of the shared noise, (C,), and what factors explain of the scatter so weighted, (D, D).

    Each is divided by the typical variance of its noise, a narrow one by no less than `NARROWEST` of the average.
    """
    sizes = np.exp(np.log(mixture.noise).mean(axis=1))
    says = 1.0 / np.maximum(sizes, NARROWEST * (found.counts @ sizes) / found.counts.sum())
    says /= says @ found.counts
    X, A, _ = left_by_factors(mixture, found)
    flat = (A.shape[0] * A.shape[1], A.shape[2])
    explained = ((says * found.counts)[:, None, None] * X).reshape(flat).T @ A.reshape(flat)
    if mixture.coordinates is not None:
        explained = mixture.coordinates.backward.T @ explained @ mixture.coordinates.backward
    return says, symmetric(explained[None])[0]


def kept_of_correlations(scatter: F64, n_rows: float, limits: CovarianceLimits) -> float:
    """1 minus the share of chance in the squares of the correlations of `n_rows` rows [Schäfer and Strimmer 2005]."""
    widths, D = np.sqrt(np.maximum(np.diag(scatter), limits.smallest)), len(scatter)
    squares = float(np.square((scatter / np.outer(widths, widths))[np.eye(D) == 0]).sum())
    return max(0.0, 1.0 - D * (D - 1) / n_rows / max(squares, 1e-300))


def in_shared_noise(
    mixture: LowRankParameters, origin: F64, scatter: F64, kept: float, limits: CovarianceLimits
) -> LowRankParameters:
    """The mixture in coordinates in which noise of this covariance, its correlations times `kept`, is independent."""
    shrunk = np.where(np.eye(len(origin)) > 0, scatter, kept * scatter)
    moments = CentralMoments(np.ones(1), np.zeros((1, len(origin))), shrunk[None], np.ones(1, dtype=bool))
    at = Coordinates.of_covariance(origin, FAMILIES["tied"].estimate(moments, shrunk, limits))
    old, columns = mixture.coordinates, mixture.in_columns()
    turn = at.forward if old is None else old.backward @ at.forward
    means, loadings = at.to(columns.means), at.vectors_to(columns.loadings)
    return LowRankParameters(mixture.weights, means, loadings, mixture.noise @ np.square(turn), at)
