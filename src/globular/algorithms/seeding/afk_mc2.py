"""AFK-MC²: D² sampling by Markov chains, one pass over the rows for any number of seeds.

The first seed c₁ is a row drawn by weight. Each next one is the last state of a Metropolis chain of length m whose
proposals come from q(x) = ½ w d(x, c₁)² / Σ w d² + ½ w / Σ w and whose target is D² sampling, π(x) ∝ w d(x, S)²: move
from x to y with probability min(1, π(y) q(x) / (π(x) q(y))). The weights cancel in that ratio.

Proposals do not depend on the seeds, so those of many chains are drawn at once and kept as a small shard of their own:
its d2 state holds the distances to all seeds so far, brought up to date by matrix products when the block of chains
begins, and by each new seed while it lasts. Cost: one pass for q, then O(m C² D).

[Bachem, Lucic, Hassani and Krause 2016]
"""

from __future__ import annotations

import numpy as np

from globular.algorithms.seeding.common import Seeds, first_seed, repeat_rows, seeds_so_far
from globular.algorithms.seeding.plus_plus import extend
from globular.model.statistics import F64
from globular.seam.center_passes import RunChains
from globular.seam.passes import AddSeeds, Index
from globular.seam.shard import Shard

_PROPOSED_NUMBERS = 1 << 21
"""Size of a block of proposals, rows times columns."""
_LONGEST_BLOCK = 64


def afk_mc2(shard: Shard, n_clusters: int, rng: np.random.Generator, chain_length: int = 200) -> Seeds:
    """AFK-MC² seeds.

    A chain that meets nothing but rows equal to seeds cannot give a new one: the rest is then drawn by k-means++.
    """
    seeds = np.empty((n_clusters, shard.n_columns))
    seeds[:1] = first_seed(shard, rng)
    potential = shard.run(AddSeeds(seeds[:1])).potential
    yield seeds_so_far(seeds[:1], potential)
    n_seeds = 1
    n_chains = max(1, min(_LONGEST_BLOCK, _PROPOSED_NUMBERS // (chain_length * shard.n_columns)))
    while n_seeds < n_clusters and potential > 0:
        block = min(n_chains, n_clusters - n_seeds)
        indices = _propose(shard, block * chain_length, potential, rng)
        given = _run_chains(shard, indices.reshape(block, chain_length), potential, seeds, n_seeds, rng)
        n_seeds += given
        if given < block:
            potential = shard.run(AddSeeds(seeds[1:n_seeds], 1)).potential
            seeds = yield from extend(shard, seeds[:n_seeds], n_clusters - n_seeds, potential, rng)
            n_seeds = len(seeds)
            break
        yield seeds_so_far(seeds[:n_seeds].copy(), potential)  # that of the first one: chains do not look at all rows
    return repeat_rows(seeds[:n_seeds], n_clusters)


def _propose(shard: Shard, n: int, potential: float, rng: np.random.Generator) -> Index:
    """n rows from q: half by distance to the first seed, half by weight."""
    by_distance = rng.random(n) < 0.5
    masses = rng.random(n)
    indices = np.empty(n, dtype=np.intp)
    indices[by_distance] = shard.locate(masses[by_distance] * potential, "errors")
    indices[~by_distance] = shard.locate(masses[~by_distance] * shard.total_weight, "weights")
    return indices


def _run_chains(
    shard: Shard, indices: Index, potential: float, seeds: F64, n_seeds: int, rng: np.random.Generator
) -> int:
    """Run one chain per row of `indices`, writing a seed each; how many it took until a chain found none."""
    n_chains, m = indices.shape
    proposals = shard.take(indices.ravel())
    tests = rng.random((n_chains, m))
    local = shard.local(proposals)
    everyone = np.arange(n_chains * m)
    local.run(AddSeeds(seeds[:1]))
    # q(x) / w(x)
    q = 0.5 * local.take(everyone, "errors") / potential + 0.5 / shard.total_weight
    if n_seeds > 1:
        local.run(AddSeeds(seeds[1:n_seeds], 1))
    last = local.run(RunChains(q, tests))
    seeds[n_seeds : n_seeds + len(last)] = proposals[last]
    return len(last)
