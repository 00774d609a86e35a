"""Chunks: cells of the *data*, each with its weight, mean and scatter; what Chunky EM works with instead of rows.

(The cells of `model.cells` are cells of centres, another thing.) Scatter is summed about the chunk's own mean, so that
nothing cancels, and packed as its kind says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64, Additive, joined, picked

ShareRule = Literal["optimal", "centroid"]
"""Responsibilities of a chunk: those of largest bound (Eq. 10), or the posterior of its mean (Moore 1999)."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Some chunks. `a + b` holds those of both."""

    weights: F64
    """Σ w, (M,)."""
    means: Any
    """x̄ = Σ w x / Σ w, (M, D); of sparse rows these, as their shard holds them."""
    scatter: F64
    """Σ w (x − x̄)(x − x̄)ᵀ packed, (M, S), summed and not per unit weight; (M, 0) stands for zeros: single rows."""
    kind: ScatterKind

    def __len__(self) -> int:
        return len(self.weights)

    def __add__(self, other: Chunks) -> Chunks:
        return Chunks.join([self, other])

    @classmethod
    def of_rows(cls, rows: F64, weights: F64, kind: ScatterKind) -> Chunks:
        """Every row by itself."""
        return cls(weights, rows, np.empty((len(weights), 0)), kind)

    @classmethod
    def join(cls, parts: list[Chunks]) -> Chunks:
        """All parts in order."""
        of_rows = all(part.scatter.shape[1] == 0 for part in parts)
        return joined(parts if of_rows else [part.with_scatter() for part in parts])

    def with_scatter(self) -> Chunks:
        """The same, zeros written out."""
        width = self.kind.width(self.means.shape[1])
        if self.scatter.shape[1] == width:
            return self
        return Chunks(self.weights, self.means, np.zeros((len(self), width)), self.kind)

    def moments(self, kind: ScatterKind) -> F64:
        """Scatter of a kind that can be had from theirs, as in `SoftStatistics`."""
        D = self.means.shape[1]
        return kind.unpack(self.kind.coarsen(self.with_scatter().scatter, kind, D), D)

    def pick(self, which: slice | np.ndarray) -> Chunks:
        """Some of them."""
        return picked(self, which)


@dataclass(frozen=True, slots=True)
class Claims:
    """Chunks or rows that some components of a mixture are responsible for, those of one behind those of the other."""

    chunks: Chunks
    """Chunks of weights w q(component), and summed scatter that has shrunk with it."""
    starts: I64
    """What the i-th component has is starts[i] … starts[i + 1] − 1."""

    def __iter__(self) -> Iterator[Chunks]:
        return (self.chunks.pick(slice(*pair)) for pair in pairwise(self.starts.tolist()))

    @classmethod
    def join(cls, parts: list[Claims]) -> Claims:
        """All parts of every component in order."""
        if len(parts) == 1:
            return parts[0]
        chunks = Chunks.join([chunks for of in zip(*parts, strict=True) for chunks in of])
        return cls(chunks, np.sum([part.starts for part in parts], axis=0))


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
        both = joined([self, other])
        both.total += other.total
        both.n_chunks += other.n_chunks
        both.n_distances += other.n_distances
        return picked(both, np.argsort(-both.gains, kind="stable"))

    def first(self, n: int) -> ChunkGains:
        """The n largest of them."""
        return picked(self, slice(n))

    def smallest_within(self, n_cells: int) -> float:
        """The gain down to which opening adds about `n_cells` cells, the best one in any case; ∞ if there is none."""
        if not len(self.gains):
            return np.inf
        fitting = int(np.searchsorted(np.cumsum(self.added), n_cells, side="right"))
        return float(self.gains[max(fitting, 1) - 1])


@dataclass(frozen=True, slots=True)
class BoundGap(Additive):
    """How far the bound is below the log-likelihood, as a sample of the rows has it."""

    total: float
    n_distances: int
