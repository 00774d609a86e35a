"""A part of the rows that a mixture can be fitted to in place of all: no group of rows is too thin to be in it.

What a row may add to the log-likelihood of a mixture depends on how remote it is and on how few others are like it. So
rows are put into rough groups, those of seeds by D² sampling, and drawn in proportion to their weight times

    ½ · 1/W  +  ⅙ · ( d²/φ  +  φ_g/(W_g φ)  +  1/(G W_g) )

where W and φ are the weight and the squared distances to the closest seed of all rows, W_g and φ_g those of the row's
group, and G is the number of groups. The first half is a plain sample; of the other every group has its third,
however few rows it has. A row counts with the inverse of its chance. So for any mixture the log-likelihood of the part
is that of all rows up to the noise of sampling, and a component that holds few rows has enough of them.

Deviation: the sensitivities of the paper have constants that grow with the number of components, which is not known
here. With equal shares beside a half by weight no row counts for more than twice what it would in a plain sample.

[Lucic, Faulkner, Krause and Feldman 2018]
"""

from __future__ import annotations

import numpy as np

from globular.algorithms.calibration import MOST_GROUPS
from globular.algorithms.kmeans.coreset import draw_rows
from globular.algorithms.seeding.common import DrawnRows, evenly_spread_masses, take_squared_distances
from globular.algorithms.seeding.plus_plus import distinct_plus_plus
from globular.algorithms.steps import result_of
from globular.seam.passes import AddSeeds, BlendErrors, Total
from globular.seam.shard import Shard

ROWS_PER_GROUP = 64
"""Rows of the coreset for each group; smaller = more groups, and sampling closer to the error."""
ROWS_PER_SEED = 16
"""Rows that seeds are drawn from, for each of them."""


def draw_rows_of_groups(shard: Shard, n: int, rng: np.random.Generator) -> DrawnRows:
    """About n rows of a coreset for mixtures; errors and seeds of the rows are overwritten."""
    n_groups = max(1, min(MOST_GROUPS, n // ROWS_PER_GROUP))
    some = draw_rows(shard, min(shard.n_rows, ROWS_PER_SEED * n_groups), rng).of(shard)
    seeds = result_of(distinct_plus_plus(some, n_groups, rng))
    potential = shard.run(AddSeeds(seeds)).potential
    weights, errors = (np.asarray(shard.run(Total(of, "seeds", len(seeds)))) for of in ("weights", "errors"))
    filled = weights > 0
    shares = np.full(len(seeds), 1.0 / np.count_nonzero(filled))
    if potential > 0:
        shares = shares + errors / potential
    plain = (3.0 if potential > 0 else 1.0) / shard.total_weight  # as much as the other terms together
    of_seeds = plain + np.divide(shares, weights, out=np.zeros_like(shares), where=filled)
    shard.run(BlendErrors(of_seeds, 1.0 / potential if potential > 0 else 0.0))
    # one pass of draws for all terms: where each had its own, rows would be drawn twice more often
    total = float(shard.run(Total("errors"))[0])
    drawn = shard.locate(evenly_spread_masses(total, n, rng), "errors")
    indices, counts = np.unique(drawn, return_counts=True)
    return DrawnRows(indices, counts * (total / n) / take_squared_distances(shard, indices), counts)
