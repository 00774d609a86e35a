"""Swaps: centres that share a group of rows move to where one centre serves several groups.

Neither Lloyd steps nor probing can carry a centre across a gap, so where the data fall into separate groups the seeds
decide for good. A swap takes a centre that is hardly missed and puts it on a row drawn in proportion to its squared
distance, as k-means++ would draw it. It is made when the estimated gain exceeds the estimated loss:

- loss: merging cluster a into its nearest neighbour b costs n_a n_b / (n_a + n_b) ‖μ_a − μ_b‖² exactly;
- gain: the lowest error of k centres falls like k^(−2/d) in d dimensions (Zador's law), so one centre more where
  cluster c lies takes the share 2/d from the error of that cluster, its neighbours moving closer too; more where the
  cluster is really several. d is the effective dimension (Σ v)² / Σ v² of the columns' variances v inside clusters,
  taken from the rows drawn.

The merge is a bound on the loss (the neighbours will move closer there as well), so swaps that pass the test mostly
pay. The rounds are also the first iterations: centres move with momentum.

[Zador 1982]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from globular.algorithms.cells import draw_cells, graph_by_cells
from globular.algorithms.centers import update_centers
from globular.algorithms.momentum import Momentum
from globular.algorithms.seeding.common import effective_dimension
from globular.backends.protocol import Index, Shard
from globular.model.cells import CenterCells
from globular.model.statistics import F64, HardStatistics

MAX_ROUNDS = 6
SAFETY = 1.2
"""A gain must exceed the loss by this factor."""
DRAWN = 0.2
"""Share of the clusters that may move in a round."""
WORTH_ANOTHER_ROUND = 0.002
"""Go on while at least this share of the clusters has moved."""


@dataclass(frozen=True, slots=True)
class SwappedSeeds:
    """Centres after the swaps, how they move, and the distances it took. The rows are labelled to go with them."""

    centers: F64
    momentum: Momentum
    n_swaps: int
    n_distances: int


def swap_seeds(
    shard: Shard, centers: F64, rng: np.random.Generator, *, n_probes: int = 2, unit_centers: bool = False
) -> SwappedSeeds:
    """Rounds of one probing step and many swaps, until few are left to make. Rows must be labelled."""
    n_swaps, n_distances = 0, 0
    momentum = Momentum(unit_centers=unit_centers)
    for _ in range(MAX_ROUNDS):
        cells = draw_cells(shard, centers, rng)
        statistics = shard.probing_pass(centers, cells, n_probes)
        n_distances += statistics.n_distances
        update = update_centers(shard, statistics, centers, unit=unit_centers, rows_follow=False)
        centers = momentum.beyond(centers, update)
        swapped = _swap(shard, update.centers, cells, statistics, rng)
        centers[swapped] = update.centers[swapped]
        momentum.forget(swapped)
        n_swaps += len(swapped)
        if len(swapped) <= WORTH_ANOTHER_ROUND * len(centers):
            break
    return SwappedSeeds(centers, momentum, n_swaps, n_distances)


def _swap(
    shard: Shard, centers: F64, cells: CenterCells, statistics: HardStatistics, rng: np.random.Generator
) -> Index:
    """Swap in place and rename the labels of the clusters that are given up; returns which."""
    C = len(centers)
    counts, potential = statistics.counts, statistics.objective
    if C < 3 or potential <= 0:
        return np.empty(0, dtype=np.intp)
    nearest = graph_by_cells(shard, centers, cells, 2)[:, 1]
    squared = np.einsum("ij,ij->i", centers - centers[nearest], centers - centers[nearest])
    losses = counts * counts[nearest] / np.maximum(counts + counts[nearest], 1e-300) * squared
    errors = shard.label_errors(C)
    drawn = shard.locate(np.sort(rng.random(max(1, int(DRAWN * C)))) * potential)
    drawn = rng.permutation(np.unique(drawn))
    rows, owners = shard.take(drawn), shard.labels[drawn]
    share = _share_of_a_second_center(rows - centers[owners])
    names = np.arange(C, dtype=np.int32)
    # has moved, has taken over the rows of one that moved, or has been split: no longer to be given up
    settled = np.zeros(C, dtype=bool)
    spares = np.argsort(losses, kind="stable")[::-1].tolist()
    for row, owner in sorted(zip(rows, owners.tolist(), strict=True), key=lambda pair: -errors[pair[1]]):
        while spares and (settled[spares[-1]] or names[nearest[spares[-1]]] != nearest[spares[-1]]):
            spares.pop()
        if not spares:
            break
        spare = spares[-1]
        if spare == owner or names[owner] != owner or share * errors[owner] <= SAFETY * losses[spare]:
            continue
        centers[spare] = row
        names[spare] = nearest[spare]
        settled[[spare, nearest[spare], owner]] = True
        errors[owner] *= 0.5
    shard.relabel(names)
    return np.flatnonzero(names != np.arange(C))


def _share_of_a_second_center(residuals: F64) -> float:
    """Of the error of its cluster, from the differences of some rows to their centres."""
    return min(0.5, 2.0 / effective_dimension(np.einsum("ij,ij->j", residuals, residuals)))
