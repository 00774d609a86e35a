"""What the end of an infinite mixture is told by its rows: how strong the prior is to be, and whether EM knows better.

F is a bound, and looser the fewer rows a component holds for its parameters. It prefers a wide S₀, which inflates the
directions in which single components are thin; and cycles that it accepts keep components where EM, with as many of
them, would move some elsewhere. Both are settled by densities here, not by F.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from globular.algorithms.mixtures.em import EMOptions
from globular.algorithms.mixtures.pipeline import rows_of_part, search_start
from globular.algorithms.steps import Step
from globular.model.dirichlet import InfiniteMixture
from globular.model.gaussian import GaussianParameters
from globular.model.observations import Moments, Prior
from globular.model.statistics import SoftStatistics
from globular.model.sticks import StickPrior
from globular.seam.answers import Answer
from globular.seam.mixture_passes import Expect
from globular.seam.shard import Shard

_STRENGTHS = 1.0, 0.3, 0.1, 0.03, 0.01
"""Shares of the fitted S₀ that are tried."""
_LEFT_OUT, _MOST_LEFT_OUT = 0.2, 4000
"""Share of the rows that are left out to tell which is best, and how many at most."""
FEWEST_ROWS, _USUAL = 1000, 0.3
"""Of fewer rows those left out would tell nothing: then S₀ is as weak as usual, and there is no search."""
_MOST_DENSITIES = 2**23
"""The search is done where a step of it takes no more densities."""


class Strength(NamedTuple):
    """A prior, and what speaks for it."""

    prior: Prior
    log_density: float
    """Mean log-density of rows that were left out."""


def searched_mixture(
    shard: Shard, n_components: int, covariance_type: str, tol: float, rng: np.random.Generator
) -> Iterator[Step[GaussianParameters]]:
    """Steps to a mixture of as many components as `GaussianMixture` would begin with; none where they would be dear."""
    n_rows = min(shard.n_rows, rows_of_part(shard, n_components, covariance_type))
    if n_components < 2 or shard.n_rows < FEWEST_ROWS or n_rows * n_components > _MOST_DENSITIES:
        return
    search = search_start(shard, n_components, covariance_type, EMOptions(tol=tol), rng)
    n_distances = 0
    while True:
        try:
            n_distances += next(search).n_distances
        except StopIteration as end:
            yield Step(0, -np.inf, n_distances, None, end.value)
            return


def best_strength(
    shard: Shard, mixture: GaussianParameters, found: SoftStatistics, prior: Prior, alpha: StickPrior
) -> Strength:
    """The prior with that share of its scale under which rows are most likely that had no part in the posteriors.

    `found` are the statistics of all rows under `mixture`. Those of rows that are left out are taken away from them, so
    that it takes no other pass over all rows.
    """
    if shard.n_rows < FEWEST_ROWS:
        return Strength(prior.weakened(_USUAL), -np.inf)
    n = min(math.ceil(_LEFT_OUT * shard.n_rows), _MOST_LEFT_OUT)
    index = (np.arange(n) * (shard.n_rows / n)).astype(np.intp)
    left_out = shard.local(shard.take(index), shard.take(index, "weights"))
    rest = _difference(Moments.from_pass(mixture, found), Moments.from_pass(mixture, left_out.run(Expect(mixture))))
    tried = []
    for share in _STRENGTHS:
        weaker = prior.weakened(share)
        totals = left_out.run(Answer(InfiniteMixture.update(weaker, alpha, rest, 0.0), "total"))
        tried.append(Strength(weaker, float(sum(totals)) / left_out.total_weight))
        if weaker is prior:
            break
    return max(tried, key=lambda one: one.log_density)


def _difference(whole: Moments, part: Moments) -> Moments:
    """What is left of every component without a part of its rows."""
    counts, sums, scatter = (a - b for a, b in zip(whole.about(whole.means), part.about(whole.means), strict=True))
    counts = np.maximum(counts, 0.0)
    shifts = np.divide(sums, counts[:, None], out=np.zeros_like(sums), where=counts[:, None] > 0)
    return Moments(counts, whole.means + shifts, scatter - whole.kind.outer(counts, shifts), whole.kind)
