"""Swaps: centres that share a group of rows move to where one centre serves several groups.

Neither Lloyd steps nor probing can carry a centre across a gap, so where the data fall into separate groups the seeds
decide for good. A swap takes a centre that is hardly missed and puts it on a row drawn in proportion to its squared
distance, as k-means++ would draw it. It is made when the estimated gain exceeds the estimated loss:

- loss: merging cluster a into its nearest neighbour b costs n_a n_b / (n_a + n_b) ‖μ_a − μ_b‖² exactly;
- gain: a second centre takes at least the share (2/π) / d from the error of a Gaussian cluster in d dimensions, and
  more from a cluster that is really several. Such clusters stand out by their error, so the estimate suffices. d is the
  effective dimension (Σ v)² / Σ v² of the columns' variances v inside clusters, taken from the rows drawn.

On data without groups hardly a swap passes the test and the first round is all but the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from globular.algorithms.cells import draw_cells, graph_by_cells
from globular.algorithms.centers import update_centers
from globular.algorithms.seeding.common import effective_dimension
from globular.backends.protocol import Shard
from globular.model.cells import CenterCells
from globular.model.statistics import F64, HardStatistics

MAX_ROUNDS = 6
SAFETY = 1.2
"""A gain must exceed the loss by this factor."""
DRAWN = 0.1
"""Share of the clusters that may move in a round."""
WORTH_ANOTHER_ROUND = 0.002
"""Go on while at least this share of the clusters has moved."""


@dataclass(frozen=True, slots=True)
class SwappedSeeds:
    """Centres after the swaps, and the distances it took. The rows are labelled to go with them."""

    centers: F64
    n_swaps: int
    n_distances: int


def swap_seeds(
    shard: Shard, centers: F64, rng: np.random.Generator, *, n_probes: int = 2, unit_centers: bool = False
) -> SwappedSeeds:
    """Rounds of one probing step and many swaps, until few are left to make. Rows must be labelled."""
    n_swaps, n_distances = 0, 0
    for _ in range(MAX_ROUNDS):
        cells = draw_cells(shard, centers, rng)
        statistics = shard.probing_pass(centers, cells, n_probes)
        n_distances += statistics.n_distances
        centers = update_centers(shard, statistics, centers, unit=unit_centers, rows_follow=False).centers
        n_now = _swap(shard, centers, cells, statistics, rng)
        n_swaps += n_now
        if n_now <= WORTH_ANOTHER_ROUND * len(centers):
            break
    return SwappedSeeds(centers, n_swaps, n_distances)


def _swap(shard: Shard, centers: F64, cells: CenterCells, statistics: HardStatistics, rng: np.random.Generator) -> int:
    """Swap in place and rename the labels of the clusters that are given up; returns how many."""
    C = len(centers)
    counts, potential = statistics.counts, statistics.objective
    if C < 3 or potential <= 0:
        return 0
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
    return int(np.count_nonzero(names != np.arange(C)))


def _share_of_a_second_center(residuals: F64) -> float:
    """Of the error of a cluster without structure, from the differences of some rows to their centres."""
    dimension = effective_dimension(np.einsum("ij,ij->j", residuals, residuals))
    return min(0.5, 2.0 / np.pi / dimension)
