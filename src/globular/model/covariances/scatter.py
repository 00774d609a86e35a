"""Second moments of components: which of them are summed up, how they are packed, and what Gaussians make of them.

A kind of scatter is the sum of squared differences, ‖x − μ‖² (`NORM`), that of every column (`COLUMNS`), or the whole
matrix (`OUTER`). Statistics have it in the shapes (C, 1), (C, D) or (C, D, D), trees and features packed, (C, S): of a
matrix the upper triangle, row by row. Packed second moments make every Gaussian log-density linear in the features
(x, packed xxᵀ, 1); precisions packed as their `dual` have the entries off the diagonal doubled, so that xᵀ Σ⁻¹ x is a
plain product with the packed xxᵀ. Passes ask the kind for all of that, and never which one it is.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import numpy as np

from globular.model.statistics import F64, I64

WIDE = 40
"""Columns from which covariance matrices are all applied to differences: products of that size need no packing, and the
packed moments of a block would not fit the cache."""
CANCELLATION_LIMIT = 1e6
"""Largest size of the terms of an expanded square: it loses as many digits, here 6 of 16."""


class ScatterKind:
    """One kind of second moment: as it is written here that of every column, Σ w (x − μ)².

    There is one object of each kind, in capitals, so that `is` compares them.
    """

    name: ClassVar[str] = "columns"
    separable: ClassVar[bool] = True
    """Whether it has no correlations between columns."""

    def __reduce__(self) -> str:
        return self.name.upper()  # a copy, and what a worker unpickles, is the same object

    def entry(self, D: int) -> tuple[int, ...]:
        """Shape of a parameter of one component: (), (D,) or (D, D)."""
        return (D,)

    def shape(self, C: int, D: int) -> tuple[int, ...]:
        """Shape in statistics."""
        return (C, *(self.entry(D) or (1,)))

    def stacked(self, values: F64, D: int) -> F64:
        """Parameters of components as (C, 1), (C, D) or (C, D, D); C is 1 where there is one for all."""
        return values.reshape(-1, *(self.entry(D) or (1,)))

    def each(self, values: F64, C: int, D: int) -> F64:
        """The same for every component; a view where all have one."""
        stacked = self.stacked(values, D)
        return stacked if len(stacked) == C else np.broadcast_to(stacked, (C, *stacked.shape[1:]))

    def width(self, D: int) -> int:
        """S, the numbers that a packed second moment takes."""
        return self.shape(1, D)[1]

    def unpack(self, packed: F64, D: int) -> F64:
        """Second moments as they are in statistics."""
        return packed

    def of_columns(self, values: F64, columns: I64) -> F64:
        """Covariances of some columns, from those of all."""
        return values[..., columns]

    def diagonal(self, variances: F64) -> F64:
        """A parameter of one component with these variances, (D,); with the first of them where columns share one."""
        return variances

    def dual(self, precisions: F64) -> F64:
        """Precisions of every component packed, (C, S), so that tr Σ⁻¹ S is a product with a packed second moment."""
        return np.ascontiguousarray(precisions)

    @property
    def coarser(self) -> ScatterKind | None:
        """The kind that can be had from this one."""
        return NORM

    def coarsen(self, packed: F64, wanted: ScatterKind, D: int) -> F64:
        """The same second moments as another, coarser kind."""
        kind = self
        while kind is not wanted:
            if kind.coarser is None:
                raise ValueError(f"the tree holds scatter of kind {self.name!r}, this mixture needs {wanted.name!r}")
            packed, kind = kind._drop(packed, D), kind.coarser
        return packed

    def _drop(self, packed: F64, D: int) -> F64:
        """Packed second moments as the next coarser kind."""
        return packed.sum(axis=1, keepdims=True)

    @property
    def by_column(self) -> ScatterKind:
        """The coarsest kind that this one can be had from and that knows columns apart."""
        return self

    def from_squares(self, squares: F64) -> F64:
        """Second moments from the squares of every column, (C, D), where these are enough."""
        return squares

    def moments(self, covariances: F64, counts: F64, D: int) -> F64:
        """Second moments of weights with these covariances, (C, 1), (C, D) or (C, D, D)."""
        return counts[:, None] * covariances

    def seen_as(self, wanted: ScatterKind, scatter: F64) -> F64:
        """Second moments, in the shape of statistics, as another kind that can be had from this one."""
        return scatter if wanted is self else wanted.from_squares(self.diagonals(scatter))

    def outer(self, counts: F64, shifts: F64) -> F64:
        """Second moments of weights at some distance, Σ w y yᵀ."""
        return counts[:, None] * self.from_squares(shifts**2)

    def outer_sum(self, counts: F64, shifts: F64) -> F64:
        """The same of all components together, one of them in the shape of statistics."""
        return self.from_squares((counts @ shifts**2)[None])

    def times(self, scatter: F64, vectors: F64) -> F64:
        """The second moments of every component times a vector, (C, D)."""
        return scatter * vectors

    def diagonals(self, scatter: F64) -> F64:
        """What second moments say about single columns, (C, D), or about all together, (C, 1)."""
        return scatter

    def by_differences(self, D: int) -> bool:
        """Whether products with differences cost less than features do."""
        return False

    def principal_steps(self, covariances: F64, metric: F64) -> tuple[F64, F64]:
        """One standard deviation along each principal component, (C, D), and its variance in units of the metric, (C,).

        Of variances alone it is the widest column.
        """
        ratios = np.maximum(covariances, 0.0) / metric
        widest = np.argmax(ratios, axis=1)
        every = np.arange(len(widest))
        steps = np.zeros_like(covariances)
        steps[every, widest] = np.sqrt(np.maximum(covariances[every, widest], 0.0))
        return steps, ratios[every, widest]


class _Norm(ScatterKind):
    """Σ w ‖x − μ‖²."""

    name = "norm"

    def entry(self, D: int) -> tuple[int, ...]:
        return ()

    def of_columns(self, values: F64, columns: I64) -> F64:
        return values

    def diagonal(self, variances: F64) -> F64:
        return variances[0]

    def from_squares(self, squares: F64) -> F64:
        return squares.sum(axis=1, keepdims=True)

    def moments(self, covariances: F64, counts: F64, D: int) -> F64:
        return D * counts[:, None] * covariances

    @property
    def coarser(self) -> None:
        return None

    @property
    def by_column(self) -> ScatterKind:
        return COLUMNS


class _Outer(ScatterKind):
    """Σ w (x − μ)(x − μ)ᵀ."""

    name = "outer"
    separable = False

    @property
    def coarser(self) -> ScatterKind:
        return COLUMNS

    def entry(self, D: int) -> tuple[int, ...]:
        return (D, D)

    def width(self, D: int) -> int:
        return D * (D + 1) // 2

    def unpack(self, packed: F64, D: int) -> F64:
        rows, columns = _upper_triangle(D)
        matrices = np.empty((len(packed), D, D))
        matrices[:, rows, columns] = packed
        matrices[:, columns, rows] = packed
        return matrices

    def of_columns(self, values: F64, columns: I64) -> F64:
        return values[..., columns[:, None], columns]

    def dual(self, precisions: F64) -> F64:
        rows, columns = _upper_triangle(precisions.shape[-1])
        packed = np.ascontiguousarray(precisions[:, rows, columns])
        packed *= np.where(rows != columns, 2.0, 1.0)
        return packed

    def diagonal(self, variances: F64) -> F64:
        return np.diag(variances)

    def _drop(self, packed: F64, D: int) -> F64:
        rows, columns = _upper_triangle(D)
        return packed[:, rows == columns]

    def from_squares(self, squares: F64) -> F64:
        raise TypeError("the squares of columns do not say how they are correlated")

    def moments(self, covariances: F64, counts: F64, D: int) -> F64:
        return counts[:, None, None] * covariances

    def outer(self, counts: F64, shifts: F64) -> F64:
        weighted = np.sqrt(counts)[:, None] * shifts  # of both sides, so that matrices are symmetric
        return weighted[:, :, None] * weighted[:, None, :]

    def outer_sum(self, counts: F64, shifts: F64) -> F64:
        return ((counts[:, None] * shifts).T @ shifts)[None]

    def times(self, scatter: F64, vectors: F64) -> F64:
        return np.einsum("cde,ce->cd", scatter, vectors)

    def diagonals(self, scatter: F64) -> F64:
        return np.diagonal(scatter, axis1=1, axis2=2)

    def by_differences(self, D: int) -> bool:
        return D >= WIDE

    def principal_steps(self, covariances: F64, metric: F64) -> tuple[F64, F64]:
        lower = np.linalg.cholesky(metric)
        inverse = np.linalg.inv(lower)
        values, vectors = np.linalg.eigh(inverse @ covariances @ inverse.T)
        variances = np.maximum(values[:, -1], 0.0)
        return np.sqrt(variances)[:, None] * (vectors[:, :, -1] @ lower.T), variances


NORM, COLUMNS, OUTER = _Norm(), ScatterKind(), _Outer()


@cache
def _upper_triangle(D: int) -> tuple[I64, I64]:
    """Rows and columns of the entries that are stored of a matrix; passes over small mixtures ask for them most."""
    return np.triu_indices(D)
