"""Chunks: cells of the *data*, each with its weight, mean and scatter; what Chunky EM works with instead of rows.

(The cells of `model.cells` are cells of centres, another thing.) Scatter is summed about the chunk's own mean, so that
nothing cancels, and packed: one number ("norm"), one per column ("columns"), or the upper triangle of the matrix row by
row ("outer"). Packed second moments make every Gaussian log-density linear in the features (x, packed xxᵀ, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64, Additive

ShareRule = Literal["optimal", "centroid"]
"""Responsibilities of a chunk: those of largest bound (Eq. 10), or the posterior of its mean (Moore 1999)."""

FINENESS: tuple[ScatterKind, ...] = ("norm", "columns", "outer")
"""Kinds of scatter, each of which can be had from those after it."""


def packed_width(kind: ScatterKind, D: int) -> int:
    """Numbers that a packed second moment takes."""
    return {"norm": 1, "columns": D, "outer": D * (D + 1) // 2}[kind]


@cache
def upper_triangle(D: int) -> tuple[I64, I64]:
    """Rows and columns of the entries that are stored of a matrix. Small mixtures ask for nothing as often."""
    return np.triu_indices(D)


def pack(matrices: F64) -> F64:
    """The upper triangles of symmetric matrices, (M, D, D) → (M, D(D+1)/2)."""
    rows, columns = upper_triangle(matrices.shape[-1])
    return np.ascontiguousarray(matrices[:, rows, columns])


def unpack(packed: F64, kind: ScatterKind, D: int) -> F64:
    """Second moments in the shapes of `SoftStatistics.scatter`: (M,), (M, D) or (M, D, D)."""
    if kind == "norm":
        return packed[:, 0]
    if kind == "columns":
        return packed
    rows, columns = upper_triangle(D)
    matrices = np.empty((len(packed), D, D))
    matrices[:, rows, columns] = packed
    matrices[:, columns, rows] = packed
    return matrices


def coarsen(packed: F64, kind: ScatterKind, wanted: ScatterKind, D: int) -> F64:
    """The same second moments as another, coarser kind."""
    if kind == wanted:
        return packed
    if FINENESS.index(wanted) > FINENESS.index(kind):
        raise ValueError(f"the tree holds scatter of kind {kind!r}, this mixture needs {wanted!r}")
    if kind == "outer":
        rows, columns = upper_triangle(D)
        packed = packed[:, rows == columns]
    return packed if wanted == "columns" else packed.sum(axis=1, keepdims=True)


@dataclass(frozen=True, slots=True)
class Chunks:
    """Some chunks. `a + b` holds those of both."""

    weights: F64
    """Σ w, (M,)."""
    means: F64
    """x̄ = Σ w x / Σ w, (M, D)."""
    scatter: F64
    """Σ w (x − x̄)(x − x̄)ᵀ packed, (M, S), summed and not per unit weight; (M, 0) stands for zeros: single rows."""
    kind: ScatterKind

    def __len__(self) -> int:
        return len(self.weights)

    def __add__(self, other: Chunks) -> Chunks:
        a, b = self.with_scatter(), other.with_scatter()
        return Chunks(
            np.concatenate([a.weights, b.weights]),
            np.concatenate([a.means, b.means]),
            np.concatenate([a.scatter, b.scatter]),
            self.kind,
        )

    @classmethod
    def join(cls, parts: list[Chunks]) -> Chunks:
        """All parts in order; the same as adding them one by one."""
        parts = [part.with_scatter() for part in parts]
        return cls(
            np.concatenate([part.weights for part in parts]),
            np.concatenate([part.means for part in parts]),
            np.concatenate([part.scatter for part in parts]),
            parts[0].kind,
        )

    def with_scatter(self) -> Chunks:
        """The same, zeros written out."""
        width = packed_width(self.kind, self.means.shape[1])
        if self.scatter.shape[1] == width:
            return self
        return Chunks(self.weights, self.means, np.zeros((len(self), width)), self.kind)

    def matrices(self) -> F64:
        """Scatter in the shapes of `SoftStatistics.scatter`."""
        return unpack(self.with_scatter().scatter, self.kind, self.means.shape[1])

    def pick(self, which: slice | np.ndarray) -> Chunks:
        """Some of them."""
        return Chunks(self.weights[which], self.means[which], self.scatter[which], self.kind)


NodeValue = Callable[[Chunks], F64]
"""What each of some chunks is worth as a cluster of its own; −∞ if it cannot be one."""


@dataclass(frozen=True, eq=False, slots=True)
class Within:
    """Restricts a pass to what a component holds: every chunk counts with its share w q(component)."""

    mixture: GaussianParameters
    component: int


@dataclass(slots=True)
class ChunkGains:
    """What opening chunks would gain, the largest first."""

    gains: F64
    """Per cell that it adds (a node one, a leaf of n rows n − 1), (n,), descending."""
    added: I64
    """Those cells, (n,)."""
    total: float
    """The gain of opening all of them."""
    n_chunks: int
    """Chunks of the frontier."""
    n_distances: int

    def __add__(self, other: ChunkGains) -> ChunkGains:
        gains = np.concatenate([self.gains, other.gains])
        order = np.argsort(-gains, kind="stable")
        return ChunkGains(
            gains[order],
            np.concatenate([self.added, other.added])[order],
            self.total + other.total,
            self.n_chunks + other.n_chunks,
            self.n_distances + other.n_distances,
        )

    def first(self, n: int) -> ChunkGains:
        """The n largest of them."""
        return ChunkGains(self.gains[:n], self.added[:n], self.total, self.n_chunks, self.n_distances)

    def smallest_within(self, n_cells: int) -> float:
        """The gain down to which opening adds about so many cells, the best one in any case; ∞ if there is none."""
        if not len(self.gains):
            return np.inf
        fitting = int(np.searchsorted(np.cumsum(self.added), n_cells, side="right"))
        return float(self.gains[max(fitting, 1) - 1])


@dataclass(frozen=True, slots=True)
class BoundGap(Additive):
    """How far the bound is below the log-likelihood, as a sample of the rows has it."""

    total: float
    n_distances: int
