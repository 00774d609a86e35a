"""Coordinates in which the noise of correlated columns is independent, and their way back.

Let the noise ε of the columns be explained column by column: ε_i = Σ_{j<i} b_ij ε_j + δ_i with independent δ_i of
variance ψ_i, or T ε = δ with T unit lower triangular. Any covariance is of this form, Ψ = T⁻¹ diag(ψ) T⁻ᵀ; T and ψ are
its Cholesky factor L = T⁻¹ diag(√ψ). In the coordinates T (x − origin), scaled by s, the noise is that of independent
columns, so whatever knows these alone is used as it is. Densities are those of the new coordinates times |det|.

Shared by all components, T says what columns have to do with each other everywhere, while each component keeps
variances ψ of its own: a column that is constant in a component, given those before it, stays so. That is why the
coordinates are those of a triangle, and not the principal ones, each of which is a mixture of all columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg.lapack import dtrtri

from globular.lazy import cached_property
from globular.model.covariances import FAMILIES, CovarianceLimits
from globular.model.statistics import F64
from globular.model.subspace import Subspace
from globular.threads.blas import single_threaded_blas

MULTIPLIED_AT_ONCE = 1 << 10
"""Rows of a product at once."""
_LARGEST_SINGLE = float(np.finfo(np.float32).max) / 2


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The map x → (x − origin) forward."""

    origin: F64
    """(D,)."""
    forward: F64
    """Upper triangular with a positive diagonal, (D, D)."""

    @classmethod
    def of_covariance(cls, origin: F64, covariance: F64) -> Coordinates:
        """Those in which noise of this covariance about the origin is that of independent columns of variance one."""
        return cls(_as_single(origin), FAMILIES["tied"].factors(covariance))

    @classmethod
    def of_regressions(cls, origin: F64, regressions: F64, variances: F64) -> Coordinates:
        """From T, (D, D), and the typical variance of every column given those before it, (D,)."""
        return cls(_as_single(origin), np.ascontiguousarray(regressions.T / np.sqrt(variances)))

    @cached_property
    def backward(self) -> F64:
        """The inverse of `forward`."""
        return np.ascontiguousarray(dtrtri(self.forward)[0])

    @cached_property
    def scales(self) -> F64:
        """s, how long a unit of each coordinate is given those before it, (D,)."""
        return 1.0 / np.diag(self.forward)

    @property
    def regressions(self) -> F64:
        """T, unit lower triangular, (D, D)."""
        found = np.ascontiguousarray((self.forward * self.scales).T)
        np.fill_diagonal(found, 1.0)
        return found

    @property
    def log_volume(self) -> float:
        """log |det forward|."""
        return -float(np.log(self.scales).sum())

    @property
    def subspace(self) -> Subspace:
        """The same map for a `Project`."""
        return Subspace(self.origin, self.forward)

    def is_same(self, other: Coordinates) -> bool:
        """Whether both are the same map, number by number."""
        return self is other or (
            np.array_equal(self.origin, other.origin) and np.array_equal(self.forward, other.forward)
        )

    def to(self, rows: F64) -> F64:
        """Coordinates of rows, (n, D)."""
        return self.vectors_to(rows - self.origin)

    def back(self, points: F64) -> F64:
        """The rows with these coordinates, (n, D)."""
        return self.origin + self.vectors_back(points)

    def vectors_to(self, vectors: F64) -> F64:
        """Differences of rows as differences of coordinates, (…, D)."""
        return _product(vectors, self.forward)

    def vectors_back(self, vectors: F64) -> F64:
        """And the other way round."""
        return _product(vectors, self.backward)

    def limits(self, limits: CovarianceLimits) -> CovarianceLimits:
        """Limits of variances of columns, here as those of a column given the ones before it."""
        squares = np.square(self.scales)
        return replace(limits, reg_covar=limits.reg_covar / squares, smallest=limits.smallest / squares)


def _as_single(origin: F64) -> F64:
    """An origin that rows in float32 can have subtracted without rounding it first."""
    fits = np.abs(origin) < _LARGEST_SINGLE
    return np.where(fits, np.where(fits, origin, 0.0).astype(np.float32), origin).astype(np.float64)


@single_threaded_blas
def _product(vectors: F64, matrix: F64) -> F64:
    """Vectors times a matrix, by blocks on one thread: the same bits for any number of vectors and threads."""
    flat = np.ascontiguousarray(vectors, dtype=np.float64).reshape(-1, matrix.shape[0])
    found = np.empty_like(flat)
    for begin in range(0, len(flat), MULTIPLIED_AT_ONCE):
        np.matmul(flat[begin : begin + MULTIPLIED_AT_ONCE], matrix, out=found[begin : begin + MULTIPLIED_AT_ONCE])
    return found.reshape(vectors.shape)
