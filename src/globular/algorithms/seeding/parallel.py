"""k-means‖: a few rounds that each draw many candidates, then k-means++ on the weighted candidates.

Round by round every row is a candidate with probability min(1, ℓ w d²/φ), where φ = Σ w d² is the current potential
and ℓ the number of candidates wanted. Each candidate then carries the weight of the rows closest to it.

Deviation: the paper decides row by row, independently. Here the masses (u + 0, u + 1, …, u + ℓ − 1)·φ/ℓ with one
uniform u are looked up in the running sum of w d². Every row is drawn with exactly the probability above, the number
of draws does not fluctuate, and the outcome does not depend on how the rows are split.

[Bahmani, Moseley, Vattani, Kumar and Vassilvitskii 2012]
"""

from __future__ import annotations

import numpy as np

from globular.algorithms.seeding.common import Seeds, evenly_spread_masses, first_seed, repeat_rows, seeds_so_far
from globular.algorithms.seeding.plus_plus import distinct_plus_plus, extend
from globular.algorithms.steps import result_of
from globular.seam.passes import AddSeeds, Total
from globular.seam.shard import Shard


def parallel(
    shard: Shard, n_clusters: int, rng: np.random.Generator, n_rounds: int = 5, oversampling: float = 2.0
) -> Seeds:
    """k-means‖ seeds with ℓ = oversampling · n_clusters candidates a round. O(N · n_rounds · ℓ · D)."""
    candidates = first_seed(shard, rng)
    first_potential = potential = shard.run(AddSeeds(candidates)).potential
    yield seeds_so_far(candidates, potential)
    n_candidates = int(np.ceil(oversampling * n_clusters))
    for _ in range(n_rounds):
        if potential <= 0:
            break
        indices = np.unique(shard.locate(evenly_spread_masses(potential, n_candidates, rng), "errors"))
        drawn = shard.take(indices)
        potential = shard.run(AddSeeds(drawn, len(candidates))).potential
        candidates = np.concatenate([candidates, drawn])
        yield seeds_so_far(candidates[:n_clusters], first_potential)  # the rounds know that of all candidates alone
    weights = shard.run(Total("weights", "seeds", len(candidates)))
    seeds = result_of(distinct_plus_plus(shard.local(candidates, weights), n_clusters, rng))
    if len(seeds) < n_clusters:  # all the candidates are seeds; the shard still knows its distances to them
        extended = yield from extend(shard, candidates, n_clusters - len(seeds), potential, rng)
        seeds = np.concatenate([seeds, extended[len(candidates) :]])
    return repeat_rows(seeds, n_clusters)
