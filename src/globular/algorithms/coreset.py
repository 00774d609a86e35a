"""K-means on a part of the rows first: where each cluster has hundreds of rows, most of a fit needs only some.

The mean of m rows misses that of all by 1/m of their variance. So centres fitted to m rows a cluster end about 1/m
above the error that all rows would give them, and an iteration or two over all rows make up for it. Seeds, swaps and
the iterations before cost what the part costs, whatever the number of rows.

The part is a lightweight coreset: half of it drawn by weight, half in proportion to the squared distance from the mean,
each row with the inverse of its chance for a weight. So remote groups of few rows are in it, and for any centres the
error of the part is that of all rows, up to the noise of sampling. Where rows are remote on several scales, as in
network traffic, even that misses some: all rows then have a much larger error than the part had, and are swapped too.

[Bachem, Lucic and Krause 2018]
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from globular.algorithms.probing import ProbingOptions, probing_kmeans
from globular.algorithms.seeding.common import TAKEN_NUMBERS, sample_by_weight_and_error
from globular.algorithms.swaps import SwappedSeeds, swap_seeds
from globular.model.statistics import F64
from globular.seam.passes import AddSeeds
from globular.seam.shard import Shard

ROWS_PER_CLUSTER = 128
WORTH_IT = 4
"""How many times more rows there have to be."""
CREDIBLE = 1.1
"""By how much the error of all rows may exceed that of the part before the part counts as misleading."""


def draw_part(shard: Shard, n_clusters: int, rng: np.random.Generator) -> Shard | None:
    """Enough rows for so many clusters, beside the algorithm; None where that is too many, or hardly fewer than all."""
    n = ROWS_PER_CLUSTER * n_clusters
    if shard.n_rows < WORTH_IT * n or n * shard.n_columns > TAKEN_NUMBERS:
        return None
    mean, _ = shard.column_moments()
    potential = shard.run(AddSeeds(mean[None])).potential
    indices, weights = sample_by_weight_and_error(shard, n, potential, rng)
    return shard.local(shard.take(indices), weights)


def swap_from_part(
    shard: Shard,
    part: Shard,
    centers: F64,
    options: ProbingOptions,
    rng: np.random.Generator,
    *,
    outside: float = 0.0,
) -> SwappedSeeds:
    """Swaps and iterations on the part, whose rows are labelled; then all rows, with swaps if it was misleading.

    `outside` is an error that the shards do not see.
    """
    min_gain, unit = options.min_gain, options.unit_centers
    swapped = swap_seeds(part, centers, rng, min_gain=min_gain, unit_centers=unit, outside=outside)
    n_distances = swapped.n_distances
    for step in probing_kmeans(
        part, swapped.centers, options, rng, momentum=swapped.momentum, before=swapped.objective, outside=outside
    ):
        n_distances += step.n_distances
    swapped = swap_seeds(
        shard, step.model, rng, min_gain=min_gain, unit_centers=unit, outside=outside, labelled=False,
        good_enough=CREDIBLE * step.objective,
    )  # fmt: skip
    return replace(swapped, n_distances=swapped.n_distances + n_distances)
