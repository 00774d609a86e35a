"""Swaps in a stream, whose rows are seen once: centres move across gaps by what two halves of each cluster add up to.

Every cluster is cut in two by online 2-means. The rows that vote for it also vote for the closer of its halves, of
which only sums and counts are kept: k × D numbers, whatever the length of the stream. So both sides of a swap (`swaps`)
are sums over all rows so far, and no row is needed to make it:

- loss: clusters a and b become one, b the nearest neighbour of a; a and b are its halves from then on;
- gain: a cluster becomes two, its halves; each is cut anew at a row of the batches to come.

A swap is made where the gain exceeds the loss. Votes only change hands: their number and their sum stay what they were.
"""

from __future__ import annotations

import numpy as np

from globular.algorithms.kmeans.cells import graph_by_cells
from globular.algorithms.kmeans.swaps import cost_of_joining, matched_swaps
from globular.algorithms.kmeans.votes import Votes
from globular.model.cells import CenterCells
from globular.model.nested import NestedStatistics
from globular.model.statistics import F64
from globular.seam.passes import Halve, Relabel
from globular.seam.shard import Shard


def cut_in_halves(votes: Votes, halves: Votes) -> Halve:
    """The cut of every cluster: `halves` has the votes for one half; a cluster without a cut has its centre twice."""
    others = _other_counts(votes, halves)
    cut = np.flatnonzero((others > 0) & (halves.counts > 0))
    firsts, seconds = votes.centers.copy(), votes.centers.copy()
    firsts[cut] = votes.origin + (votes.sums[cut] - halves.sums[cut]) / others[cut, None]
    seconds[cut] = votes.origin + halves.sums[cut] / halves.counts[cut, None]
    return Halve(firsts, seconds)


def count_halves(shard: Shard, halves: Votes, cut: Halve, rng: np.random.Generator) -> None:
    """Count the rows of a labelled batch; clusters without a cut get one, at a row drawn by its squared distance."""
    won, k = shard.run(cut), len(halves.counts)
    halves.sums += won.sums - won.counts[:, None] * halves.origin
    halves.counts += won.counts
    if won.objective <= 0 or halves.counts.all():
        return
    drawn = rng.permutation(shard.locate(np.sort(rng.random(4 * k)) * won.objective, "errors"))
    owners, first = np.unique(shard.take(drawn, "labels"), return_index=True)
    uncut = halves.counts[owners] == 0
    owners, drawn = owners[uncut], drawn[first[uncut]]
    halves.counts[owners] = shard.take(drawn, "weights")
    halves.sums[owners] = halves.counts[owners, None] * (shard.take(drawn) - halves.origin)


def swap_halves(shard: Shard, votes: Votes, halves: Votes, cells: CenterCells | None, *, unit: bool) -> None:
    """Make the swaps that gain more than they lose; neighbours are those in the same `cells`, or of all centres."""
    k, D = votes.centers.shape
    if k < 3:
        return
    near = graph_by_cells(shard, votes.centers, cells, 2)[:, 1]
    means, others = _means(votes.sums, votes.counts), _other_counts(votes, halves)
    losses = cost_of_joining(votes.counts, means, votes.counts[near], means[near])
    gains = cost_of_joining(
        others, _means(votes.sums - halves.sums, others), halves.counts, _means(halves.sums, halves.counts)
    )
    names, seats = matched_swaps(losses, near, gains, np.arange(k, dtype=np.int32), safety=1.0)
    split = np.flatnonzero(seats >= 0)
    spare, heirs = seats[split], near[seats[split]]
    change = NestedStatistics.none(k, D)
    for voted, half, moved in ((votes.sums, halves.sums, change.sums), (votes.counts, halves.counts, change.counts)):
        given_up, cut_off = voted[spare], half[split]
        moved[split] -= cut_off
        moved[spare] += cut_off - given_up
        np.add.at(moved, heirs, given_up)
        half[split] = half[spare] = 0.0
        half[heirs] = given_up
    votes.move(shard, change, unit=unit)
    shard.run(Relabel(np.append(names, np.int32(-1))))  # the last entry is where −1 itself points to


def _other_counts(votes: Votes, halves: Votes) -> F64:
    """Votes for the other half of each cluster; what is left by rounding is none."""
    others = votes.counts - halves.counts
    return np.where(others > 1e-12 * votes.counts, others, 0.0)


def _means(sums: F64, counts: F64) -> F64:
    return sums / np.where(counts > 0, counts, 1.0)[:, None]
