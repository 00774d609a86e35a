"""Swaps: centres that share a group of rows move to where one centre serves several groups.

Neither Lloyd steps nor probing can carry a centre across a gap, so where the data fall into separate groups the seeds
decide for good. A swap takes a centre that is hardly missed and puts it on a row drawn in proportion to its squared
distance, as k-means++ would draw it. It is made when the gain exceeds the loss:

- loss: to make clusters a and b one costs n_a n_b / (n_a + n_b) ‖μ_a − μ_b‖² exactly, b the nearest neighbour of a;
- gain: to make a cluster two gains the same with the means of the two parts. The parts are known: one truncated pass in
  which every row compares its centre with the row drawn from its cluster.

That settles the matter where a cluster is really several. In one group of rows that cut says little: one centre more
there pays since its neighbours move closer too. The lowest error of k centres falls like k^(−2/d) in d dimensions
(Zador's law), so the gain may be the share 2/d of the cluster's error; d is the effective dimension (Σ v)² / Σ v² of
the columns' variances v inside clusters, taken from the rows drawn. The law is for many centres in one group. How much
of it to believe is measured: what the newcomers of a round are worth in the next one, where giving them up has its
price too, against what was expected of them.

The rounds are also the first iterations: centres move with momentum.

[Zador 1982]
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np

from globular.algorithms.kmeans.cells import draw_cells, graph_by_cells, search_widely
from globular.algorithms.kmeans.centers import update_centers
from globular.algorithms.kmeans.momentum import Momentum
from globular.algorithms.kmeans.probing import ProbingOptions, find_labels, probing_kmeans
from globular.algorithms.seeding.common import distinct, effective_dimension
from globular.algorithms.seeding.named import Start, Starting
from globular.algorithms.steps import Step, after, mapped, numbered_from
from globular.model.cells import CenterCells
from globular.model.history import SWAPS
from globular.model.statistics import F64, HardStatistics
from globular.seam.among import Probe
from globular.seam.passes import Assign, Halve, Index, Labels, Relabel, Total
from globular.seam.shard import Shard

SETTLED_GAIN = 1e-2
"""Iterations that come before swaps gain at least this share."""
COST_SAFETY = 1.2
"""A gain must exceed the loss by this factor."""
FIRST_TRUST = (0.5,) * 5
"""Shares of Zador's gain that newcomers are taken to be worth before any has been measured."""


@dataclass(frozen=True, slots=True)
class SwappedSeeds:
    """Centres after the swaps and how they move. The rows are labelled to go with them."""

    centers: F64
    momentum: Momentum
    objective: float
    """Objective of the last probing step."""
    n_rounds: int
    n_swaps: int
    n_distances: int
    """Distances that the last swaps took, which no step has counted."""


def swap_and_step(
    shard: Shard,
    centers: F64,
    options: ProbingOptions,
    rng: np.random.Generator,
    *,
    labelled: bool = True,
    good_enough: float = 0.0,
) -> Iterator[Step[F64]]:
    """Swaps, then iterations of probing k-means from where they end, `max_iter` of both together.

    From seeds alone no iteration carries a centre across a gap. For the arguments see `swap_seeds`.
    """
    n_settling = 0
    if options.settles:
        settling = replace(options, min_gain=SETTLED_GAIN)
        for step in probing_kmeans(shard, centers, settling, rng, labelled=labelled):
            is_last = step.iteration == options.max_iter or step.objective <= options.unexplained
            yield replace(step, stopped=step.stopped if is_last else "", stage=SWAPS)
        if is_last:
            return
        centers, labelled, n_settling = step.model, True, step.iteration
    left = replace(options, max_iter=options.max_iter - n_settling)
    swapped = yield from mapped(
        swap_seeds(shard, centers, left, rng, labelled=labelled, good_enough=good_enough),
        lambda step: replace(step, iteration=n_settling + step.iteration),
    )
    if swapped.n_rounds >= left.max_iter:
        return
    n_before = n_settling + swapped.n_rounds
    left = replace(options, max_iter=options.max_iter - n_before)
    steps = probing_kmeans(shard, swapped.centers, left, rng, momentum=swapped.momentum, before=swapped.objective)
    yield from numbered_from(after(steps, swapped.n_distances), n_before)


def swap_seeds(
    shard: Shard,
    centers: F64,
    options: ProbingOptions,
    rng: np.random.Generator,
    *,
    labelled: bool = True,
    good_enough: float = 0.0,
) -> Generator[Step[F64], None, SwappedSeeds]:
    """Rounds of one probing step (or an exact one: see `swap_probes`) and many swaps.

    Rows that probe and are not labelled are searched widely in the first.

    They end when there is little to gain by swaps any more, a round gains less than the share `swap_gain` of the
    objective, or the objective is no more than `good_enough`. A round yields its means from before its swaps, with the
    objective that they have at most.
    """
    unexplained, least = options.unexplained, options.min_gain if options.swap_gain is None else options.swap_gain
    n_swaps, before = 0, np.inf
    momentum = Momentum(unit_centers=options.unit_centers, n_threads=shard.n_threads)
    swaps = _Swaps(shard, rng)
    for n_rounds in range(1, min(20, options.max_iter) + 1):
        cells = draw_cells(shard, centers, rng) if options.swap_probes > 0 else None
        if cells is None:
            statistics = shard.run(Assign(centers))
        elif labelled:
            statistics = shard.run(Assign(centers, Probe(cells, options.swap_probes)))
        else:
            statistics, labelled = search_widely(shard, centers, options.swap_probes, rng), True
        update = update_centers(shard, statistics, centers, unit=options.unit_centers, rows_follow=False)
        n_distances, swaps.n_distances = statistics.n_distances + swaps.n_distances, 0
        stopped = "max_iter" if n_rounds == options.max_iter else ""
        objective = statistics.objective + unexplained
        yield Step(n_rounds, objective, n_distances, statistics.n_changed, update.centers, stopped, SWAPS)
        centers = momentum.beyond(centers, update)
        gained, before = before - statistics.objective, statistics.objective
        asked = least * (before + unexplained)
        # a gain of less than nothing: some swaps were bad, and will be undone
        if stopped or before + unexplained <= good_enough or 0 <= gained < asked:
            break
        means = update.centers.copy()
        swapped = swaps.make(means, cells, statistics)
        centers[swapped] = means[swapped]
        momentum.forget(swapped)
        n_swaps += len(swapped)
        if swaps.promised <= 0.1 * asked:  # hardly worth another round
            break
    return SwappedSeeds(centers, momentum, before + unexplained, n_rounds, n_swaps, swaps.n_distances)


def swapped_start(shard: Shard, start: Start, options: ProbingOptions, rng: np.random.Generator) -> Starting:
    """Seeds after swaps, for algorithms that cannot carry a centre across a gap either. The rows are labelled."""
    if not start.labelled:
        find_labels(shard, start.centers, rng, n_rounds=1)
    swapped = yield from mapped(
        swap_seeds(shard, start.centers, options, rng), lambda step: replace(step, iteration=0, stopped="")
    )
    # one step after the swaps: swapped centres get their rows, and centres that momentum left without any a new place
    steps = probing_kmeans(shard, swapped.centers, options, rng, momentum=swapped.momentum, before=swapped.objective)
    return replace(start, centers=next(steps).model, graph=None, labelled=True)


class _Swaps:
    """Rounds of swaps, each of which learns from the one before."""

    def __init__(self, shard: Shard, rng: np.random.Generator) -> None:
        self._shard, self._rng = shard, rng
        self._zador_trust = np.array(FIRST_TRUST)
        """The share of what Zador's law has promised that each newcomer so far has turned out to be worth."""
        self.promised = 0.0
        """What the swaps of the last round shall gain, less what they cost."""
        self.n_distances = 0
        """Distances of the rounds that no step has counted."""
        self._newcomers, self._expected = np.empty(0, dtype=np.intp), np.empty(0)
        """The last round's swaps that trusted Zador's law, and the gains it promised."""

    def make(self, centers: F64, cells: CenterCells | None, statistics: HardStatistics) -> Index:
        """Swap in place and rename the labels of the clusters that are given up; returns which."""
        C, self.promised = len(centers), 0.0
        if C < 3 or statistics.objective <= 0:
            return np.empty(0, dtype=np.intp)
        if cells is None:
            # a look at all centres leaves no distances behind
            self.n_distances += self._shard.run(Halve(centers, centers)).n_distances
        nearest = graph_by_cells(self._shard, centers, cells, 2)[:, 1]
        counts = statistics.counts
        losses = cost_of_joining(counts, centers, counts[nearest], centers[nearest])
        self._zador_trust = np.append(self._zador_trust, losses[self._newcomers] / self._expected)
        trust = min(1.0, float(np.median(self._zador_trust)))
        splits = _try_splits(self._shard, centers, statistics, self._rng)
        self.n_distances += splits.n_distances
        gains = np.maximum(splits.gains, trust * splits.zador_gains)
        names, seats = matched_swaps(losses, nearest, gains, splits.owners, COST_SAFETY)
        taken = np.flatnonzero(seats >= 0)
        # from here on single numbers are looked at, beside the algorithm
        losses, gains, by_cut, by_law = map(np.asarray, (losses, gains, splits.gains, splits.zador_gains))
        self.promised = float(gains[taken].sum() - losses[seats[taken]].sum())
        centers[seats[taken]] = splits.centers[taken]
        trusting = taken[gains[taken] > by_cut[taken]]
        self._newcomers, self._expected = seats[trusting].astype(np.intp), by_law[trusting]
        self._shard.run(Relabel(np.concatenate([names, np.where(seats < 0, names[np.asarray(splits.owners)], seats)])))
        return np.flatnonzero(names != np.arange(C))


@dataclass(frozen=True, slots=True)
class _Splits:
    """Second centres for some of the clusters, what they gain for certain, and by Zador's law."""

    centers: F64
    owners: Labels
    gains: F64
    zador_gains: F64
    n_distances: int


def _try_splits(shard: Shard, centers: F64, statistics: HardStatistics, rng: np.random.Generator) -> _Splits:
    """Second centres for clusters drawn by their error. The rows they would win are labelled C, C + 1, … after it."""
    C = len(centers)
    errors = shard.run(Total("errors", "labels", C))
    masses = np.sort(rng.random(max(1, C // 2))) * float(errors.sum())
    drawn = distinct(shard.locate(masses, "errors"))
    drawn = drawn[rng.permutation(len(drawn))]
    rows, labels = shard.take(drawn), shard.labels[drawn]
    share = _share_of_a_second_center(rows - centers[labels])
    owners, first = np.unique(labels, return_index=True)
    seconds, names = centers.copy(), np.arange(C, dtype=np.int32)
    seconds[owners], names[owners] = rows[first], np.arange(C, C + len(owners))
    won = shard.run(Halve(centers, seconds, names))
    sums, counts = won.sums[owners], won.counts[owners]
    left = statistics.counts[owners] - counts
    rounding = 16 * float(np.finfo(np.float64).eps)
    left[left < rounding * statistics.counts[owners]] = 0.0  # all was won: what is left of it is rounding
    means = sums / np.maximum(counts, 1e-300)[:, None]
    rests = statistics.counts[owners, None] * centers[owners] - sums
    rests = np.where(left[:, None] > 0, rests / np.where(left > 0, left, 1.0)[:, None], means)
    gains = cost_of_joining(counts, means, left, rests)
    return _Splits(rows[first], owners, gains, share * errors[owners], won.n_distances)


def cost_of_joining(n_a: F64, mean_a: F64, n_b: F64, mean_b: F64) -> F64:
    """What it costs to make two clusters one, or gains to make one two, for many pairs of clusters."""
    apart = mean_a - mean_b
    return n_a * n_b / np.maximum(n_a + n_b, 1e-300) * np.einsum("ij,ij->i", apart, apart)


def _share_of_a_second_center(residuals: F64) -> float:
    """Share of a cluster's error that a second centre takes off, from the differences of some rows to their centres."""
    return min(0.5, 2.0 / effective_dimension(np.einsum("ij,ij->j", residuals, residuals)))


def matched_swaps(losses: F64, nearest: Labels, gains: F64, owners: Labels, safety: float) -> tuple[Labels, Labels]:
    """The best splits get the centres that are least missed: new names of the clusters, and for each split the centre
    it gets or −1. A gain must exceed the loss by the factor `safety`."""
    names, seats, settled = list(range(len(losses))), [-1] * len(owners), set[int]()
    spares, best = (np.asarray(np.argsort(each, kind="stable")).tolist() for each in (losses, -gains))
    heirs, lost, gained, owned = (np.asarray(each).tolist() for each in (nearest, losses, gains, owners))
    waiting = iter(spares)
    spare = next(waiting, None)
    for k in best:
        # settled: has moved, has taken over the rows of one that moved, or has been split
        while spare is not None and (spare in settled or names[heirs[spare]] != heirs[spare]):
            spare = next(waiting, None)
        if spare is None or gained[k] <= safety * lost[spare]:  # no other split gains more, no other centre costs less
            break
        if spare != owned[k] and names[owned[k]] == owned[k]:
            names[spare], seats[k] = heirs[spare], spare
            settled |= {spare, heirs[spare], owned[k]}
    return np.array(names, dtype=np.int32), np.array(seats, dtype=np.int32)
