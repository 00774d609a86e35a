"""Weights of drawn rows that agree with all rows: groups of a sample weigh what theirs do, and have the same means.

A sample of m rows misses the mean of a group by 1/m of its variance, and so do the centres that are fitted to it. But a
pass over all rows knows the weight W_g and the mean x̄_g of every group, so weights are changed as little as possible
until the sample has both:

    w_i ← w_i · W_g / Σ w                                        in every group
    w_i ← w_i · (1 + t λ·(x_i − x̂_g)),   λ = S⁺ (x̄_g − x̂_g)      x̂_g and S the mean and covariance of the sample

which for t = 1 is the change of least Σ (w′ − w)²/w. Where a weight would fall below a tenth, t < 1 is what keeps it
there, and the mean comes as close as that allows. So weights stay positive and add up to those of all rows, and what is
drawn again from such samples begins where they agree.

Groups are those of some k-means steps on the sample, with enough rows for the columns of a mean to be few beside
them; where one has too few rows for a mean, its weight alone agrees. About a mean that it has been given a sample
spreads less, by 1/m of the variance within groups: errors and log-likelihoods of a coreset are too good by as much.

[Deville and Särndal 1992]
"""

from __future__ import annotations

import numpy as np

from globular.algorithms.kmeans.lloyd import SAMPLE_STEPS, KMeansOptions, lloyd
from globular.algorithms.seeding.common import TAKEN_NUMBERS, DrawnRows
from globular.algorithms.seeding.plus_plus import distinct_plus_plus
from globular.algorithms.steps import last_step, result_of
from globular.model.statistics import F64
from globular.seam.passes import Assign
from globular.seam.shard import Shard

MOST_GROUPS = 256
"""Each costs a distance for every row."""
ROUNDED_TO = 1e-10
"""A column that varies by less than this share of its size counts as constant, a direction as one of other columns."""


def calibrated(shard: Shard, drawn: DrawnRows, rng: np.random.Generator) -> DrawnRows:
    """The drawn rows with weights that agree with all rows of the shard, whose labels are overwritten."""
    n, n_values = len(drawn.indices), shard.n_columns + 1
    # a group has 192 rows of the sample on average, and eight for each number that they shall agree in
    n_groups = max(1, min(MOST_GROUPS, n // max(192, 8 * n_values)))
    if n * shard.n_columns > TAKEN_NUMBERS:
        return drawn._replace(weights=drawn.weights * (shard.total_weight / drawn.weights.sum()))
    rows, weights = np.asarray(shard.take(drawn.indices)), drawn.weights.copy()
    sample = shard.local(rows, weights)
    centers = _groups(sample, n_groups, rng)
    labels, every = np.asarray(sample.labels), shard.run(Assign(centers))
    order = np.argsort(labels, kind="stable")
    for g, mine in enumerate(np.split(order, np.searchsorted(labels[order], np.arange(1, len(centers))))):
        total = float(every.counts[g])
        if len(mine) < 2 * n_values:  # too few for a mean
            weights[mine] *= total / weights[mine].sum()
        else:
            weights[mine] = agreeing(rows[mine], weights[mine], total, every.sums[g] / total)
    return drawn._replace(weights=weights)


def agreeing(rows: F64, weights: F64, total: float, mean: F64) -> F64:
    """Weights for some rows that add up to `total`, and with which their mean is `mean` where it can be."""
    weights = weights * (total / weights.sum())
    own = weights @ rows / total
    apart = rows - own
    spreads = np.sqrt(weights @ np.square(apart) / total)
    varies = spreads > ROUNDED_TO * np.abs(own)
    apart, missed = apart[:, varies] / spreads[varies], ((mean - own) / np.where(varies, spreads, 1.0))[varies]
    correlations = (apart.T * weights) @ apart / total
    changes = apart @ (np.linalg.pinv(correlations, rcond=ROUNDED_TO, hermitian=True) @ missed)
    changes -= weights @ changes / total  # what rounding has left
    steepest = -float(changes.min(initial=0.0))
    share = min(1.0, 0.9 / steepest) if steepest > 0 else 1.0
    return weights * (1.0 + share * changes)


def _groups(sample: Shard, n_groups: int, rng: np.random.Generator) -> F64:
    """Centres of groups, none of them empty; the rows of the sample are labelled by them."""
    seeds = result_of(distinct_plus_plus(sample, n_groups, rng))
    centers = last_step(lloyd(sample, seeds, KMeansOptions(SAMPLE_STEPS, 0.0))).model
    found = sample.run(Assign(centers))
    centers = centers[found.counts > 0]
    sample.run(Assign(centers, want="labels"))
    return centers
