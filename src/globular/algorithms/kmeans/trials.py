"""Swaps that are tried out: centres move to where they gain most, and back if the error does not fall.

Iterations of k-means end in the local minimum that their seeds lie above, and among few clusters one centre in the
wrong place is a percent of the error. Starting ten times and keeping the best finds a better minimum at ten times the
cost. To move a single centre and to look what becomes of it costs a few iterations, and each success is kept:

- *Spare* centres are those whose rows have a second centre close by: what each is worth is known from one pass (its
  rows go to their second closest centre, which then moves towards them: seven tenths of the difference are lost),
  or from merging it with its nearest neighbour, whichever is less.
- *Where a second centre would gain most*: every cluster is cut in two by a few steps of 2-means, all clusters in the
  same passes at two distances a row.
- The best pairs are swapped, first a quarter of the centres at once. A few iterations later the error is compared: if
  it is lower the new centres stay, else the old ones come back and half as many are swapped the next time. After a few
  failures of a single swap the search ends.

So the error never rises, and a fit costs two or three times what its iterations cost; on a part of the rows that is
little. (Swaps for thousands of clusters, hundreds at once and not tried one by one, are in `swaps`; where hundreds of
clusters have too few rows for a part, those come first.)

[Fränti 2018; Fritzke 2020]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from globular.algorithms.graphs import nearest_graph
from globular.algorithms.kmeans.probing import ProbingOptions, accelerated_kmeans
from globular.algorithms.kmeans.swaps import SETTLED_GAIN, cost_of_joining, swap_and_step
from globular.algorithms.steps import Step, numbered_from
from globular.model.history import SWAPS
from globular.model.statistics import F64
from globular.seam.passes import Halve, Spare, SumByLabel
from globular.seam.shard import Shard

Swap: TypeAlias = tuple[int, int]
"""A cluster that gets a second centre, and the spare centre that it gets."""

LEAST_RATIO = 0.4
"""A swap is tried if its gain is at least this share of its loss; iterations often make up for the rest."""
ROUGH_GAIN = 1e-3
"""What iterations before the first swap gain at least."""
STEPS_PER_TRIAL = 5
CLUSTERS_TRIED = 100
SWAPPED_FROM = 192
"""Number of clusters from which a search of all rows begins with swaps of many centres at once."""
WORTH_KEEPING = 1e-5
"""Share of what is at stake that a trial has to gain."""


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """How long to search."""

    max_failures: int = 6
    """Swaps of a single centre that may fail one after the other; no more than there are others."""
    more_failures: int = 128
    """As many more as this is times the number of clusters: the fewer there are, the cheaper they are."""
    max_trials: int = 60
    """Most trials; fewer for more than `CLUSTERS_TRIED` clusters: the first ones swap many at once."""
    max_share: float = np.inf
    """Most iterations in trials, as a multiple of those before them."""
    n_before: int = 0
    """Iterations before the search, which count among these."""
    rough_gain: float = ROUGH_GAIN
    """Iterations before the first swap end when one gains less than this share."""

    @property
    def on_larger_part(self) -> TrialOptions:
        """After a search on a part of the rows: what fails on a small one mostly fails on a larger one."""
        return replace(self, more_failures=0)


def search_by_trials(
    shard: Shard, centers: F64, options: ProbingOptions, trials: TrialOptions, rng: np.random.Generator
) -> Iterator[Step[F64]]:
    """Iterations, trials, and iterations again, `max_iter` of all of them together.

    There is a step for every iteration, also of a trial; each holds the best centres so far.
    """
    rough = replace(options, min_gain=max(options.min_gain, trials.rough_gain))
    for step in accelerated_kmeans(shard, centers, rough):
        ended = step.stopped if step.objective == 0.0 else ""
        best = replace(step, stopped="max_iter" if step.iteration == options.max_iter else ended, stage=SWAPS)
        yield best
    at_once, in_vain, prospects = max(1, len(centers) // 4), set[Swap](), None
    max_failures = min(trials.max_failures, len(centers) - 1) + trials.more_failures // len(centers)
    last_trial = min(options.max_iter, best.iteration + (trials.n_before + best.iteration) * trials.max_share)
    n_trials = int(trials.max_trials * min(1.0, CLUSTERS_TRIED / len(centers)) ** 1.5)
    for _ in range(n_trials if len(centers) > 2 and not best.stopped else 0):
        n_distances = 0
        if prospects is None:
            prospects = _Prospects(shard, best.model, rng)
            n_distances = prospects.n_distances
        swaps = prospects.best_swaps(at_once, in_vain)
        if not swaps:
            break
        goal = min(best.objective, prospects.objective + options.unexplained)
        goal -= WORTH_KEEPING * options.at_stake(goal)
        n_before, before = best.iteration, np.inf
        short = replace(options, max_iter=min(STEPS_PER_TRIAL, options.max_iter - n_before))
        for step in accelerated_kmeans(shard, prospects.after(swaps), short):
            # the others gain less than this one, so they would hardly reach the goal
            hopeless = step.objective - (short.max_iter - step.iteration) * (before - step.objective) > goal
            success, before = bool(step.stopped) and step.objective < goal, step.objective
            best = replace(
                step if success else best, iteration=n_before + step.iteration, stage=SWAPS,
                n_distances=n_distances + step.n_distances, n_changed=step.n_changed,
                stopped="max_iter" if n_before + step.iteration == options.max_iter else "",
            )  # fmt: skip
            yield best
            n_distances = 0
            if hopeless:
                break
        if success:
            prospects = None
            in_vain.clear()
        elif len(swaps) > 1:
            at_once = len(swaps) // 2
        else:
            in_vain.update(swaps)
            if len(in_vain) % 3 == 0:
                prospects = None
        if len(in_vain) == max_failures or best.iteration >= last_trial:
            break
    if not best.stopped:
        left = replace(options, max_iter=options.max_iter - best.iteration)
        yield from numbered_from(accelerated_kmeans(shard, best.model, left), best.iteration)


def swap_and_search(
    shard: Shard, centers: F64, options: ProbingOptions, trials: TrialOptions, rng: np.random.Generator
) -> Iterator[Step[F64]]:
    """`search_by_trials` where there is no part of the rows; of hundreds of clusters, after swaps of many at once."""
    n_before = 0
    if len(centers) >= SWAPPED_FROM and not shard.passes_are_cheap:
        swapping = replace(options, swap_probes=0, min_gain=max(options.min_gain, 3e-3))
        best: Step[F64] | None = None
        for step in swap_and_step(shard, centers, swapping, rng):
            is_last = step.iteration == options.max_iter or step.objective <= options.unexplained
            if best is not None and best.objective < step.objective:  # some swaps were bad, and will be undone
                step = replace(step, objective=best.objective, model=best.model)
            best = replace(step, stopped=step.stopped if is_last else "", stage=SWAPS)
            yield best
        if is_last:
            return
        centers, n_before = step.model, step.iteration
        trials = replace(trials, n_before=n_before, rough_gain=SETTLED_GAIN)
        # iterations get dearer with the number of clusters, so they have to gain up to twice what is asked for
        options = replace(options, min_gain=min(2.0, len(centers) / SWAPPED_FROM) * options.min_gain)
    left = replace(options, max_iter=options.max_iter - n_before)
    yield from numbered_from(search_by_trials(shard, centers, left, trials, rng), n_before)


class _Prospects:
    """What each centre is worth and what a second one beside it would gain."""

    def __init__(self, shard: Shard, centers: F64, rng: np.random.Generator) -> None:
        found = shard.run(Spare(centers))
        C, self._centers = len(centers), centers
        drawn = rng.permutation(shard.locate(np.sort(rng.random(4 * C)) * found.objective, "errors"))
        owners, first = np.unique(shard.take(drawn, "labels"), return_index=True)
        self._firsts, self._seconds, self._gains = centers.copy(), centers.copy(), np.zeros(C)
        self._seconds[owners] = shard.take(drawn[first])
        counts = self._cut(shard)
        self._nearest = near = nearest_graph(shard, centers, 2)[:, 1]
        merged = cost_of_joining(counts, centers, counts[near], centers[near])
        self._losses = np.minimum(0.7 * found.losses, merged)
        self.objective = found.objective
        self.n_distances = found.n_distances + 6 * shard.n_rows
        """Data-to-cluster distances that it took."""

    def _cut(self, shard: Shard) -> F64:
        """2-means in every cluster; returns the weights of the clusters."""
        whole = shard.run(SumByLabel(len(self._centers)))
        for _ in range(3):
            second = shard.run(Halve(self._firsts, self._seconds))
            n_first, n_second = whole.counts - second.counts, second.counts
            in_two = (n_second > 0) & (n_first > 1e-12 * whole.counts)
            self._seconds[in_two] = second.sums[in_two] / n_second[in_two, None]
            self._firsts[in_two] = (whole.sums - second.sums)[in_two] / n_first[in_two, None]
            self._gains = np.where(in_two, cost_of_joining(n_first, self._firsts, n_second, self._seconds), 0.0)
        return whole.counts

    def best_swaps(self, at_most: int, in_vain: set[Swap]) -> list[Swap]:
        """The most promising swaps that have nothing to do with each other, without those known to be in vain."""
        swaps: list[Swap] = []
        settled = [False] * len(self._centers)
        # lists: of hundreds of centres tens of thousands of pairs are looked at one by one
        gains, losses, nearest = (np.asarray(each).tolist() for each in (self._gains, self._losses, self._nearest))
        spares = np.argsort(losses, kind="stable").tolist()
        for cluster in np.argsort(-np.asarray(gains), kind="stable").tolist():
            if settled[cluster] or settled[nearest[cluster]]:
                continue
            for spare in spares:
                if gains[cluster] <= LEAST_RATIO * losses[spare]:
                    break
                if spare == cluster or settled[spare] or settled[nearest[spare]] or (cluster, spare) in in_vain:
                    continue
                for touched in (cluster, spare, nearest[cluster], nearest[spare]):
                    settled[touched] = True
                swaps.append((cluster, spare))
                break
            if len(swaps) == at_most:
                break
        return swaps

    def after(self, swaps: list[Swap]) -> F64:
        """The centres after some swaps."""
        centers = self._centers.copy()
        for cluster, spare in swaps:
            centers[cluster], centers[spare] = self._firsts[cluster], self._seconds[cluster]
        return centers
