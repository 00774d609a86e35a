"""A tree of cells over the centres: each level splits the cells above it, the last level are the centres themselves.

The cells of a level are its centres: level 0 splits the whole space (one parent), the centres of level l are sorted by
their parent on level l − 1. A row is *routed* down the tree: to the closest centre of level 0, to the closest child of
that, and so on; that costs the number of children on its way instead of the number of centres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from globular.model.statistics import F64


@dataclass(frozen=True, slots=True)
class CellLevel:
    """One level: the children of all the cells above, in the order of their parents. No parent is childless."""

    centers: F64
    """(K, D)."""
    starts: NDArray[np.intp]
    """Cell g of the level above has the children starts[g] … starts[g + 1] − 1, (n_parents + 1,)."""


@dataclass(frozen=True, slots=True)
class CellTree:
    """Levels from the top down."""

    levels: tuple[CellLevel, ...]

    @property
    def centers(self) -> F64:
        """The centres of the last level."""
        return self.levels[-1].centers

    def below(self, level: CellLevel) -> CellTree:
        """This tree with one more level."""
        return CellTree((*self.levels, level))

    def moved(self, centers: F64) -> CellTree:
        """This tree with the centres of the last level moved."""
        return CellTree((*self.levels[:-1], CellLevel(centers, self.levels[-1].starts)))

    def without_empty(self, counts: F64) -> CellTree:
        """This tree without those cells of the last level that no row is routed to (a childless parent keeps one)."""
        last = self.levels[-1]
        keep = counts > 0
        childless = np.add.reduceat(keep, last.starts[:-1]) == 0
        keep[last.starts[:-1][childless]] = True
        starts = np.concatenate([[0], np.cumsum(np.add.reduceat(keep.astype(np.intp), last.starts[:-1]))])
        return CellTree((*self.levels[:-1], CellLevel(last.centers[keep], starts)))


VISITS_ABOVE = 3  # cells of cells that a row looks into
SMALL_CELLS = 3  # visits of small cells, those in cells of cells, that stand for one of a cell of √C centres


@dataclass(frozen=True, slots=True)
class CenterCells:
    """Cells of neighbouring centres: about √C of them, or C^(2/3) that are themselves in cells."""

    middles: F64
    """(cells, D)."""
    order: NDArray[np.intp]
    """Centres sorted by cell, (C,)."""
    starts: NDArray[np.intp]
    """Cell g is order[starts[g]:starts[g + 1]]; no cell is empty, (cells + 1,)."""
    above: CenterCells | None = None
    """Cells of the cells. Cells are numbered in their order."""

    @property
    def level(self) -> CellLevel:
        """The middles as a level of a tree."""
        starts = np.array([0, len(self.middles)]) if self.above is None else self.above.starts
        return CellLevel(self.middles, starts)

    def tree(self, centers: F64) -> CellTree:
        """The cells, those above first, and below them the centres, in the order of `order`."""
        levels = [self.level, CellLevel(centers[self.order], self.starts)]
        return CellTree((*levels,) if self.above is None else (self.above.level, *levels))

    def n_visits(self, n_probes: int) -> int:
        """How many cells a row visits that shall see as much as in `n_probes` cells of √C centres, or nearly."""
        return min(n_probes if self.above is None else SMALL_CELLS * n_probes, len(self.middles))


def median_center(centers: F64) -> F64:
    """An origin for products of rows and centres, (D,): unlike the mean, it stays where most of them are.

    About an origin that one far centre has dragged away, products of all other rows lose their digits.
    """
    median: F64 = np.median(centers[:: max(1, len(centers) // 1000)], axis=0)
    return median


def places_within(sizes: ArrayLike) -> NDArray[np.intp]:
    """The place of every row within its cluster, from 0, where rows are in the order of clusters of these sizes."""
    starts = starts_of(sizes)
    return np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))


def starts_of(sizes: ArrayLike) -> NDArray[np.int64]:
    """Where things of these sizes begin when they lie one behind the other, and where the last ends: (n + 1, …)."""
    sizes = np.asarray(sizes, dtype=np.int64)
    starts = np.zeros((len(sizes) + 1, *sizes.shape[1:]), dtype=np.int64)
    np.cumsum(sizes, axis=0, out=starts[1:])
    return starts
