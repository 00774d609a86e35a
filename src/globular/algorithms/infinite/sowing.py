"""Another start: k-means with more clusters than there are components, in units of the covariance that they have.

Growth by splits may end far from the smallest F. One long component over a line of clusters is worth no two halves, and
clusters that overlap are cut where none of them ends. Clusters of k-means are compact, and where there are too many of
them merges find it out, which is easier than to find where a split is missing.
"""

from __future__ import annotations

import numpy as np

from globular.algorithms.infinite.data import RowData
from globular.algorithms.infinite.splits import cold_mixture
from globular.algorithms.kmeans.rough import rough_lloyd, rough_seeds
from globular.algorithms.seeding.common import evenly_spread_masses
from globular.algorithms.seeding.named import draw_seeds
from globular.algorithms.steps import result_of
from globular.model.few_rows import SEED_DISTANCES
from globular.model.observations import Moments
from globular.model.statistics import F64

_ROWS, _ROWS_PER_MEAN = 5_000, 100
"""Rows that k-means looks at, or as many a mean if that is more."""
_STEPS, _STEADY = 10, 1e-4
"""Most steps of k-means, and the shift of the means, in units of the variance, that ends them."""


def sow(
    data: RowData, unit: F64, covariance_type: str, n_means: int, arrangement: int, rng: np.random.Generator
) -> Moments:
    """What the clusters of k-means hold, every row in the closest; distances in units of the covariance `unit`."""
    shard = data.shard
    factor = np.linalg.cholesky(unit) if unit.ndim == 2 else np.diag(np.sqrt(unit))
    n = min(shard.n_rows, max(_ROWS, _ROWS_PER_MEAN * n_means))
    drawn, counts = np.unique(shard.locate(evenly_spread_masses(shard.total_weight, n, rng)), return_counts=True)
    rows = np.linalg.solve(factor, shard.take(drawn).astype(np.float64).T).T
    rows, weights = np.ascontiguousarray(rows), counts.astype(np.float64)
    n_means = min(n_means, len(drawn))
    if len(drawn) * n_means <= SEED_DISTANCES:  # in plain NumPy: nothing has to be compiled
        seeds = rough_seeds(rows, weights, n_means, rng)
    else:
        seeds = result_of(draw_seeds(shard.local(rows, weights), "auto", n_means, rng)).centers
    found = rough_lloyd(rows, seeds, _STEPS, weights=weights, tol=_STEADY, n_threads=shard.n_threads)
    cold = cold_mixture(found.centers @ factor.T, unit, covariance_type)
    return Moments.from_pass(cold, data.e_step(cold, arrangement))
