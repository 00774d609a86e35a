"""Hierarchical seeding: split the rows into about √C cells, and each cell into its share of the C centres.

Cost O(N √C D) instead of the O(N C D) of everything that looks at all the centres, and three things come out of it: the
centres, a first label for every row (the closest centre of its own cell) and a first neighbourhood for every centre.

*The tree.* Levels of cells from the top down, two for most C, one for very small C, three (cells of cells) from
200,000 centres on. All levels are made by the same steps:
1. Quotas: how many children each cell gets, by its error E_g = Σ w ‖x − μ_g‖² (see `shares`), at least one, never
   more than there are distinct rows.
2. Seeds: k-means++ inside every cell on a sample of rows, the cells side by side; in many dimensions drawn in towards
   the centre of their cell (see `shares`) where some of them are hubs and it leaves some rows a lower error.
3. A few Lloyd steps in which a row may only choose among the children of its own cell.

*What travels.* Rows never leave their shard but for the sample. Steps 1 and 3 are `Assign` among `Down`: each
row goes down the tree and votes for a centre, and the sums add up over any split of the rows. Step 2 works on rows
taken to the algorithm's side, some per child and a bounded number of cells at a time. The upper levels take their Lloyd
steps on their sample alone. So all the rows are read once per upper level, once per Lloyd step of the last level and
once for the labels, wherever they live.

*The sample.* If there are few rows per child all of them are used. Otherwise half of the sample is drawn by weight and
half in proportion to the error w·d² that the level above has left, and a row carries the inverse of its chance of being
drawn: remote groups of few rows are not missed, and the sample still stands for the whole.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.graphs import neighbor_graph
from globular.algorithms.seeding.common import (
    TAKEN_NUMBERS,
    effective_dimension,
    evenly_spread_masses,
    one_center,
    repeat_rows,
    sample_by_weight_and_error,
    seeds_so_far,
)
from globular.algorithms.seeding.plus_plus import distinct_plus_plus, extend
from globular.algorithms.seeding.shares import JUDGES, apportion, drawn_in, of_unit_length, share_exponent
from globular.algorithms.steps import Step, result_of
from globular.model.cells import CellLevel, CellTree, starts_of
from globular.model.statistics import F64, HardStatistics
from globular.seam.among import Down, Route
from globular.seam.center_passes import CellSeeds
from globular.seam.passes import AddSeeds, Assign, Index, Labels
from globular.seam.shard import Shard

FLAT_UP_TO = 24
"""So few centres are seeded without a tree."""
THREE_LEVELS_FROM = 200_000
ROWS_PER_CHILD = 32
"""Sampled rows per child; all rows are used where there are fewer."""
LARGE = 4
"""A cell with this multiple of the mean number of children is seeded by itself, by matrix products on all threads."""


@dataclass(frozen=True, slots=True)
class HierarchicalSeeds:
    """Centres with what else the hierarchy knows."""

    centers: NDArray[Any]
    """(C, D)."""
    labels: Labels
    """For each row the closest centre of its own cell, (N,)."""
    neighbors: Labels
    """For each centre itself and the closest other centres of its own and adjacent cells, closest first, (C, G)."""


def hierarchical(
    shard: Shard,
    n_clusters: int,
    rng: np.random.Generator,
    n_neighbors: int = 16,
    *,
    rough: bool = False,
    unit_centers: bool = False,
) -> Generator[Step[F64], None, HierarchicalSeeds]:
    """Seeds from a tree of cells; `unit_centers` scales means to unit length (cosine).

    `rough` seeds take one Lloyd step inside their cells, and the labels are those of before it: enough for an algorithm
    that goes on fast. With `n_neighbors` 0 no neighbours are looked for.
    """
    yield one_center(shard, unit=unit_centers)
    builder = _Builder(shard, rng, unit_centers)
    sizes = level_sizes(n_clusters)
    for size in sizes[:-1]:
        yield builder.add_upper_level(size)
    tree = yield from builder.add_last_level(sizes[-1], rough)
    neighbors = np.empty((n_clusters, 0), dtype=np.int32)
    if n_neighbors:
        neighbors = neighbor_graph(shard, tree, min(n_neighbors, n_clusters))
    return HierarchicalSeeds(tree.centers, shard.labels.copy(), neighbors)


def level_sizes(n_clusters: int) -> list[int]:
    """Number of cells on every level from the top down; the last are the centres."""
    depth = 1 if n_clusters <= FLAT_UP_TO else 2 if n_clusters < THREE_LEVELS_FROM else 3
    return [round(n_clusters ** (level / depth)) for level in range(1, depth)] + [n_clusters]


@dataclass(frozen=True, slots=True)
class _Sample:
    indices: Index
    weights: F64
    """What each row stands for."""
    is_everything: bool

    def some(self, n: int) -> _Sample:
        """At most `n` of them, evenly spread; their weights are in proportion to what they stand for."""
        chosen = slice(None, None, -(-len(self.indices) // n))
        return _Sample(self.indices[chosen], self.weights[chosen], self.is_everything and chosen.step == 1)

    def sorted_by(self, cells: Labels, n_cells: int) -> _CellSample:
        """The sample in the order of its cells."""
        sizes = np.asarray(np.bincount(cells, minlength=n_cells))
        # sorting is many times faster for numbers of 16 bits
        order = np.argsort(cells.astype(np.int16) if n_cells <= 2**15 else cells, kind="stable")
        return _CellSample(self.indices[order], self.weights[order], sizes, starts_of(sizes))


@dataclass(frozen=True, slots=True)
class _CellSample:
    indices: Index
    weights: F64
    sizes: Index
    starts: Index


class _Builder:
    """The tree so far, and what the last pass over all the rows said about its cells."""

    def __init__(self, shard: Shard, rng: np.random.Generator, unit_centers: bool) -> None:
        self.shard = shard
        self.rng = rng
        self.unit_centers = unit_centers
        self.tree = CellTree(())
        self.errors = np.ones(1)
        """Σ w d² of every cell of the last level."""
        self.dimension = effective_dimension(shard.column_moments()[1])
        self.exponent = 1.0
        self._rows_at_once = max(1, TAKEN_NUMBERS // shard.n_columns)

    def add_upper_level(self, size: int) -> Step[F64]:
        """One more level of cells, moved by Lloyd steps on its sample; then all the rows are sent down to it."""
        sample = self._sample(size * ROWS_PER_CHILD)
        tree = self.tree.below(self._seed_cells(size, sample))
        some = sample.some(self._rows_at_once)
        local = self.shard.local(self.shard.take(some.indices), some.weights)
        for step in range(6):
            tree = self._moved(tree, local.run(Assign(tree.centers, Down(tree, "stay" if step else "top"))))
        statistics = self.shard.run(Assign(tree.centers, Down(tree)))
        self.tree = tree.without_empty(statistics.counts)
        if len(self.tree.centers) < len(tree.centers):
            statistics = self.shard.run(Assign(self.tree.centers, Down(self.tree)))
        self.errors = np.asarray(statistics.errors)
        if len(self.tree.levels) == 1:
            self.exponent = share_exponent(self.dimension)
        return seeds_so_far(self.tree.centers, statistics.objective)

    def add_last_level(self, size: int, rough: bool) -> Generator[Step[F64], None, CellTree]:
        """The centres, moved by Lloyd steps of all rows inside their cells; leaves the final labels, unless rough."""
        sample = self._sample(size * ROWS_PER_CHILD)
        tree = self.tree.below(self._seed_cells(size, sample))
        route: Route = "down" if self.tree.levels else "top"
        for _ in range(1 if rough else 3):
            statistics = self.shard.run(Assign(tree.centers, Down(tree, route)))
            tree = self._moved(tree, statistics)
            yield seeds_so_far(tree.centers, statistics.objective)
            route = "stay"
        if not rough:
            self.shard.run(Assign(tree.centers, Down(tree, route), "labels"))
        return tree

    def _moved(self, tree: CellTree, statistics: HardStatistics) -> CellTree:
        """Every centre to the mean of its rows; one without rows stays."""
        occupied = statistics.counts > 0
        means = statistics.sums / np.where(occupied, statistics.counts, 1.0)[:, None]
        if self.unit_centers:
            means = of_unit_length(means, tree.centers)
        return tree.moved(np.where(occupied[:, None], means, tree.centers))

    def _sample(self, n: int) -> _Sample:
        """Rows with the weight each of them stands for; sorted by row number."""
        shard, total = self.shard, self.shard.total_weight
        if shard.n_rows <= n:
            weights = shard.take(np.arange(shard.n_rows), "weights")
            return _Sample(np.flatnonzero(weights), weights[weights > 0], True)
        if not self.tree.levels:
            indices, counts = np.unique(
                shard.locate(evenly_spread_masses(total, n, self.rng), "weights"), return_counts=True
            )
            return _Sample(indices, counts.astype(np.float64) * (total / n), False)
        indices, weights, _ = sample_by_weight_and_error(shard, n, float(self.errors.sum()), self.rng)
        return _Sample(indices, weights, False)

    def _seed_cells(self, size: int, sample: _Sample) -> CellLevel:
        """Quotas and seeds; what one cell cannot use goes to the others."""
        n_cells = len(self.errors)
        has_parents = bool(self.tree.levels)
        parents = self.shard.labels[sample.indices] if has_parents else np.zeros(len(sample.indices), dtype=np.int32)
        by_cell = sample.sorted_by(parents, n_cells)
        # a small cell that the sample has missed keeps its own centre as its only child
        capacities = np.maximum(by_cell.sizes, 1).astype(np.float64)
        shares = self.errors**self.exponent
        while True:
            quotas = apportion(shares, min(size, int(capacities.sum())), capacities)
            centers, cells = self._draw(by_cell, quotas)
            found = np.asarray(np.bincount(cells, minlength=n_cells))
            if (found == quotas).all():
                break
            capacities = np.where(found < quotas, found, capacities)
        if len(centers) < size:
            centers, cells = self._fill_up(centers, cells, size, sample.is_everything)
        order, quotas = np.argsort(cells, kind="stable"), np.bincount(cells, minlength=n_cells)
        return self._perhaps_drawn_in(CellLevel(centers[order], starts_of(quotas)), sample)

    def _perhaps_drawn_in(self, seeds: CellLevel, sample: _Sample) -> CellLevel:
        """Seeds; where some are hubs, the same drawn in towards their cells' centres if that leaves a lower error."""
        some = sample.some(min(JUDGES, self._rows_at_once))
        judges = self.shard.local(self.shard.take(some.indices), some.weights)

        def judge(centers: F64) -> tuple[float, Index]:
            tree = self.tree.below(CellLevel(centers, seeds.starts))
            error = judges.run(Assign(tree.centers, Down(tree), "labels")).objective
            return error, np.bincount(judges.labels, minlength=len(centers))

        middles = self.tree.centers if self.tree.levels else self.shard.column_moments()[0][None]
        quotas = np.diff(seeds.starts)
        closer = drawn_in(seeds.centers, middles, quotas, self.dimension, judge, unit=self.unit_centers)
        return CellLevel(closer, seeds.starts)

    def _draw(self, sample: _CellSample, quotas: Index) -> tuple[F64, Index]:
        """k-means++ inside every cell: the centres found and their cells; bare cells give their own centre."""
        bare = np.flatnonzero(sample.sizes == 0)
        centers, cells = [self.tree.centers[bare] if len(bare) else np.empty((0, self.shard.n_columns))], [bare]
        wanted = np.where(sample.sizes == 0, 0, quotas)
        large = wanted > LARGE * wanted.mean()
        for first, stop in self._cells_at_once(sample.starts):
            here = slice(sample.starts[first], sample.starts[stop])
            rows, weights = self.shard.take(sample.indices[here]), sample.weights[here]
            starts = sample.starts[first : stop + 1] - sample.starts[first]
            for cell in first + np.flatnonzero(large[first:stop]):
                inside = slice(starts[cell - first], starts[cell - first + 1])
                local = self.shard.local(rows[inside], weights[inside])
                found = result_of(distinct_plus_plus(local, int(wanted[cell]), self.rng))
                centers.append(found)
                cells.append(np.full(len(found), cell))
                wanted[cell] = 0
            uniforms = self.rng.random(int(wanted[first:stop].sum()))
            drawn = self.shard.local(rows, weights).run(CellSeeds(starts, wanted[first:stop], uniforms))
            centers.append(rows[drawn[drawn >= 0]])
            cells.append(np.repeat(np.arange(first, stop), wanted[first:stop])[drawn >= 0])
        return np.concatenate(centers), np.concatenate(cells)

    def _cells_at_once(self, starts: Index) -> Iterator[tuple[int, int]]:
        """Ranges of cells whose rows fit on this side together; at least one cell each."""
        first = 0
        while first < len(starts) - 1:
            stop = max(first + 1, int(np.searchsorted(starts, starts[first] + self._rows_at_once, side="right")) - 1)
            yield first, stop
            first = stop

    def _fill_up(self, centers: F64, cells: Index, size: int, is_everything: bool) -> tuple[F64, Index]:
        """Centres that the sample could not give: other distinct rows by D² sampling, then repeated ones."""
        n_found = len(centers)
        if not is_everything:
            potential = self.shard.run(AddSeeds(centers)).potential
            centers = result_of(extend(self.shard, centers, size - n_found, potential, self.rng))
        centers = repeat_rows(centers, size)
        if not self.tree.levels:
            return centers, np.zeros(size, dtype=np.intp)
        newcomers = self.shard.local(centers[n_found:])
        newcomers.run(Assign(self.tree.centers, Down(self.tree), "labels"))
        return centers, np.concatenate([cells, newcomers.labels.astype(np.intp)])
