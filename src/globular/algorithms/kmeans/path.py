"""Growing k-means: one run through several numbers of clusters, each starting from the one before.

    for k in sizes:  add centres where the error is, by D² sampling         (greedy while few are added)
                     k-means from there                                      exact, or probing for many clusters
                     while k is small, also k-means from new seeds; the better of the two goes on

The grown centres contain those of the number before and k-means never raises the error, so the error falls from one
number to the next: the curve over k has none of the noise of independent seedings. Adding by D² sampling is the
continuation of k-means++ [Arthur and Vassilvitskii 2007] with refined centres in place of its seeds. New seeds cost
little while there are few, and free the run from an early mistake: growing alone never takes a centre away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.algorithms.kmeans.pipeline import PROBING_FROM
from globular.algorithms.kmeans.probing import ProbingOptions, probing_kmeans
from globular.algorithms.seeding.common import greedy_trials
from globular.algorithms.seeding.named import GREEDY_UP_TO
from globular.algorithms.seeding.plus_plus import distinct_plus_plus, extend, extend_greedily
from globular.algorithms.steps import last_step, result_of
from globular.model.statistics import F64
from globular.seam.passes import AddSeeds
from globular.seam.shard import Shard

FRESH_UP_TO = 64
"""Number of clusters up to which new seeds compete with the grown centres; larger = less noise, for more time."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The clustering at one number of clusters."""

    centers: F64
    error: float
    """Mean squared distance of a row to its closest centre, exactly."""


def grow(shard: Shard, sizes: Sequence[int], options: KMeansOptions, rng: np.random.Generator) -> Iterator[Growth]:
    """Clusterings with these ascending numbers of clusters; ends early when every row has a centre of its own.

    Costs N·k distances at each size beside the iterations.
    """
    centers = result_of(distinct_plus_plus(shard, sizes[0], rng, greedy_trials(sizes[0])))
    potential = np.inf
    for size in sizes:
        if len(centers) < size and potential < np.inf:
            n_seeds, n_more = len(centers), size - len(centers)
            if n_more > GREEDY_UP_TO:
                more = extend(shard, centers, n_more, potential, rng)
            else:
                more = extend_greedily(shard, centers, n_more, potential, greedy_trials(n_seeds), rng)
            centers = result_of(more)
        if len(centers) < size:
            return
        fresh = None
        if potential < np.inf and size <= FRESH_UP_TO:
            seeds = result_of(distinct_plus_plus(shard, size, rng, greedy_trials(size)))
            fresh = _refine(shard, seeds, options, rng) if len(seeds) == size else None
        centers, potential = _better(shard, _refine(shard, centers, options, rng), fresh)
        yield Growth(centers, potential / shard.total_weight)


def _better(shard: Shard, grown: F64, fresh: F64 | None) -> tuple[F64, float]:
    """The centres of lower error, with that error; leaves the shard's squared distances with them."""
    if fresh is None:
        return grown, shard.run(AddSeeds(grown)).potential
    other = shard.run(AddSeeds(fresh)).potential
    potential = shard.run(AddSeeds(grown)).potential
    if potential <= other:
        return grown, potential
    return fresh, shard.run(AddSeeds(fresh)).potential


def _refine(shard: Shard, centers: F64, options: KMeansOptions, rng: np.random.Generator) -> F64:
    """K-means from these centres."""
    if len(centers) < PROBING_FROM:
        steps = lloyd(shard, centers, options)
    else:
        probing = ProbingOptions(max_iter=options.max_iter, unit_centers=options.unit_centers)
        steps = probing_kmeans(shard, centers, probing, rng, labelled=False)
    return last_step(steps).model
