"""Where EM would go from a mixture: a few steps on a fixed sample of the rows, judged on other rows.

Chunky EM looks there before it ends. Its cells are fine enough for the mixture that it has found, and a sharper one may
lie ahead that they cannot tell from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from globular.algorithms.mixtures.em import STEPS_ON_PART
from globular.algorithms.seeding.common import copied, evenly_spread_masses
from globular.algorithms.steps import to_come
from globular.model.covariances import CovarianceLimits
from globular.model.gaussian import GaussianParameters, m_step
from globular.model.statistics import F64
from globular.seam.answers import Answer
from globular.seam.mixture_passes import Expect
from globular.seam.shard import Shard

FEWEST_BATCH_ROWS = 8192
"""Rows that EM goes on with, and as many to judge it by."""
_ROWS_PER_PARAMETER = 8
_SHARE = 16
"""More than `FEWEST_BATCH_ROWS` are taken for many parameters only, and at most one of this many of the rows."""
_NEAR = 0.1
"""Steps end where less than this share of what they have gained is to come."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A mixture ahead of another."""

    mixture: GaussianParameters
    gain: float
    """By how much the mean log-likelihood of a row is higher there."""
    n_distances: int


class LookAhead:
    """A sample of the rows, the same at every look."""

    def __init__(self, shard: Shard, n_parameters: int, rng: np.random.Generator) -> None:
        n = max(FEWEST_BATCH_ROWS, min(_ROWS_PER_PARAMETER * n_parameters, shard.n_rows // _SHARE))
        if 2 * n >= shard.n_rows:
            self._rows = self._others = copied(shard)
            return
        # rows by weight, one from each of equal stretches: every other one to judge by
        rows: F64 = shard.take(shard.locate(evenly_spread_masses(shard.total_weight, 2 * n, rng)))
        self._rows, self._others = shard.local(rows[::2]), shard.local(rows[1::2])

    def look(
        self, mixture: GaussianParameters, limits: CovarianceLimits, enough: float, *, learned_weights: bool
    ) -> Ahead:
        """EM steps until they cannot lead to a rise by `enough` any more, or have come near their end."""
        ahead, n_distances = mixture, 0
        bound, rise, risen = -np.inf, np.inf, 0.0
        for _ in range(STEPS_ON_PART):
            statistics = self._rows.run(Expect(ahead))
            n_distances += statistics.n_distances
            before, bound = bound, statistics.log_likelihood / statistics.total_weight
            if before > -np.inf:
                steeper, rise = rise, bound - before
                risen += rise
                missing = max(enough - risen, _NEAR * risen)
                if rise <= 0.0 or (rise < steeper < np.inf and to_come(steeper, rise) < missing):
                    break
            ahead = m_step(ahead, statistics, limits, learned_weights=learned_weights)
        if risen < enough:
            return Ahead(ahead, risen, n_distances)
        answers = [self._others.run(Answer(one, "total")) for one in (mixture, ahead)]
        first, last = (float(sum(totals)) for totals in answers)
        n_distances += 2 * self._others.n_rows * mixture.n_components
        elsewhere = (last - first) / self._others.total_weight
        # what parameters owe to the sample makes the one too large and the other too small by the same
        return Ahead(ahead, 0.5 * (risen + elsewhere), n_distances)
