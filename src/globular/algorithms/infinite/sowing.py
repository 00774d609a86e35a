"""Another start: k-means with more clusters than there are components, in units of the covariance that they have.

Growth by splits may end far from the smallest F. One long component over a line of clusters is worth no two halves, and
clusters that overlap are cut where none of them ends. Clusters of k-means are compact, and where there are too many of
them merges find it out, which is easier than to find where a split is missing.
"""

from __future__ import annotations

import numpy as np

from globular.algorithms.infinite.data import RowData
from globular.algorithms.infinite.splits import cold_mixture
from globular.algorithms.kmeans.lloyd import SAMPLE_STEPS, TOLERANCE, KMeansOptions, lloyd
from globular.algorithms.seeding.common import evenly_spread_masses
from globular.algorithms.seeding.named import draw_seeds
from globular.algorithms.steps import last_step, result_of
from globular.model.observations import ObservedMoments
from globular.model.statistics import F64

_ROWS, _ROWS_PER_MEAN = 5_000, 100
"""Rows that k-means looks at, or as many a mean if that is more."""


def sow(
    data: RowData, unit: F64, covariance_type: str, n_means: int, arrangement: int, rng: np.random.Generator
) -> ObservedMoments:
    """What the clusters of k-means hold, every row in the closest; distances in units of the covariance `unit`."""
    shard = data.shard
    factor = np.linalg.cholesky(unit) if unit.ndim == 2 else np.diag(np.sqrt(unit))
    n = min(shard.n_rows, max(_ROWS, _ROWS_PER_MEAN * n_means))
    drawn, counts = np.unique(shard.locate(evenly_spread_masses(shard.total_weight, n, rng)), return_counts=True)
    rows = np.linalg.solve(factor, shard.take(drawn).astype(np.float64).T).T
    local = shard.local(np.ascontiguousarray(rows), counts.astype(np.float64))
    seeds = result_of(draw_seeds(local, "auto", min(n_means, len(drawn)), rng)).centers
    means = last_step(lloyd(local, seeds, KMeansOptions(SAMPLE_STEPS, TOLERANCE))).model
    cold = cold_mixture(means @ factor.T, unit, covariance_type)
    return ObservedMoments.from_pass(cold, data.e_step(cold, arrangement))
