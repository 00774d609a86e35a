"""k-means++: each next seed is a row drawn in proportion to its squared distance to the seeds so far (D² sampling).

Taken literally that is one pass over the rows per seed. Here seeds are drawn in batches, with the same distribution:
proposals y₁, y₂, … come independently from D² sampling with respect to the seeds S at the start of the batch. With the
seeds S′ ⊇ S at the time of its turn, a proposal is accepted with probability d(y, S′)² / d(y, S)² ≤ 1. That is
rejection sampling, so an accepted row is an exact draw from D² sampling with respect to S′. All accepted ones then go
through a single pass, as a matrix product. A batch is half as long as there are seeds already, so most proposals are
accepted, and the number of passes grows with the logarithm of the number of seeds (linearly once batches are full).

The greedy variant draws several trials per seed and keeps the one that lowers the potential most, as scikit-learn does;
there the next draw depends on the whole pass, so it stays one pass per seed, unless rows are few: then they are taken
beside the algorithm and seeded without a pass.

[Arthur and Vassilvitskii 2007]
"""

from __future__ import annotations

import numpy as np

from globular.algorithms.seeding.common import (
    Seeds,
    few_rows_of,
    first_seed,
    greedy_trials,
    repeat_rows,
    seeds_so_far,
    take_squared_distances,
)
from globular.model.statistics import F64
from globular.seam.center_passes import AcceptSeeds, SeedFew
from globular.seam.passes import AddSeeds, TrySeeds
from globular.seam.shard import Shard

_LONGEST_BATCH = 1024


def plus_plus(shard: Shard, n_clusters: int, rng: np.random.Generator, n_local_trials: int = 1) -> Seeds:
    """k-means++ seeds; more than one local trial makes it greedy."""
    seeds = yield from distinct_plus_plus(shard, n_clusters, rng, n_local_trials)
    return repeat_rows(seeds, n_clusters)


def plus_plus_of_few(shard: Shard, n_clusters: int, rng: np.random.Generator, *, unit_centers: bool = False) -> Seeds:
    """Greedy seeds for few rows, those of `plus_plus` up to rounding; it leaves nothing behind in the shard."""
    draws = np.zeros((n_clusters, greedy_trials(n_clusters)))
    draws[0, 0], draws[1:] = rng.random(), rng.random((n_clusters - 1, draws.shape[1]))
    found = few_rows_of(shard).run(SeedFew(draws, unit_centers))
    seeds = repeat_rows(shard.take(found.indices), n_clusters)
    yield seeds_so_far(seeds, found.potential)
    return seeds


def distinct_plus_plus(shard: Shard, n_clusters: int, rng: np.random.Generator, n_local_trials: int = 1) -> Seeds:
    """As `plus_plus`, but fewer rows rather than repeated ones."""
    first = first_seed(shard, rng)
    potential = shard.run(AddSeeds(first)).potential
    yield seeds_so_far(first, potential)
    if n_local_trials == 1:
        return (yield from extend(shard, first, n_clusters - 1, potential, rng))
    return (yield from extend_greedily(shard, first, n_clusters - 1, potential, n_local_trials, rng))


def extend(shard: Shard, seeds: F64, n_more: int, potential: float, rng: np.random.Generator) -> Seeds:
    """The seeds and up to `n_more` further ones by D² sampling, given the shard's d2 state after these seeds.

    Fewer only if no row is left at a positive distance.
    """
    while n_more > 0 and potential > 0:
        length = min(n_more, max(1, len(seeds) // 2), _LONGEST_BATCH)
        accepted = _draw_batch(shard, length, potential, rng)
        potential = shard.run(AddSeeds(accepted, len(seeds))).potential
        seeds, n_more = np.concatenate([seeds, accepted]), n_more - len(accepted)
        yield seeds_so_far(seeds, potential)
    return seeds


def _draw_batch(shard: Shard, length: int, potential: float, rng: np.random.Generator) -> F64:
    """Proposals from the current potential, thinned by rejection; the first one always stays."""
    indices = shard.locate(rng.random(length) * potential, "errors")
    tests = rng.random(length)
    proposals = shard.take(indices)
    if length == 1:
        return proposals
    before = take_squared_distances(shard, indices)
    return proposals[shard.local(proposals).run(AcceptSeeds(before, tests))]


def extend_greedily(
    shard: Shard, seeds: F64, n_more: int, potential: float, n_local_trials: int, rng: np.random.Generator
) -> Seeds:
    """As `extend`, a pass for every seed: of `n_local_trials` draws the one that leaves the lowest potential."""
    every = max(1, n_more // 8)  # a step for each would be most of a history
    while n_more > 0 and potential > 0:
        trials = shard.take(shard.locate(rng.random(n_local_trials) * potential, "errors"))
        best = int(np.argmin(shard.run(TrySeeds(trials))))
        potential = shard.run(AddSeeds(trials[best : best + 1], len(seeds))).potential
        seeds, n_more = np.concatenate([seeds, trials[best : best + 1]]), n_more - 1
        if n_more % every == 0:
            yield seeds_so_far(seeds, potential)
    return seeds
