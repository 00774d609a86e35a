"""Exchanges of factor analysers: one component becomes two and two others one (see `search` and `moves`).

Halves are fitted by a few EM steps, factors included, from either side of the mean along the longest factor; their gain
is the expected log-likelihood of rows under their own half, so that an overlap counts against it. A pair loses what
one component with the moments and as many factors makes less likely. *Thin* components have too few rows for factors:
they are spare, and no exchange may leave more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from globular.algorithms.mixtures.moves import CUTS, N_CLOSE
from globular.algorithms.search import Change, Prospects
from globular.model.low_rank import LowRankParameters, LowRankStatistics, merged
from globular.model.statistics import I64
from globular.seam.among import Within
from globular.seam.mixture_passes import ExpectLowRank
from globular.seam.shard import Shard


class LowRankProspects(Prospects[LowRankParameters]):
    """What two halves in the place of each component would gain, and what close pairs would lose as one."""

    def __init__(
        self,
        shard: Shard,
        mixture: LowRankParameters,
        found: LowRankStatistics,
        update: Callable[[LowRankParameters, LowRankStatistics], LowRankParameters],
    ) -> None:
        """With an E-step of the mixture that has labelled the rows, and what makes a mixture of such statistics."""
        self._mixture, self.objective = mixture, found.log_likelihood
        self._least_share = 2.0 * (mixture.n_factors + 2.0) / shard.n_rows
        alone = shard.run(ExpectLowRank(mixture, Within()))
        halves = in_halves(mixture)
        for _ in range(CUTS):
            within, last = shard.run(ExpectLowRank(halves, Within(2))), halves
            halves = update(halves, within)
        self.halves, own = halves, last.expected(within)
        self.gains = own.reshape(-1, 2).sum(axis=1) - mixture.expected(alone)
        self.gains[last.weights.reshape(-1, 2).min(axis=1) < self._least_share] = 0.0
        self.pairs = close_pairs(mixture)
        self.n_distances = found.n_distances + shard.n_rows * (1 + 2 * CUTS)
        a, b = self.pairs.T
        self.merged = merged(mixture, a, b)
        own, one = (-0.5 * shard.total_weight * each.weights * each.biases for each in (mixture, self.merged))
        thin = mixture.weights < self._least_share
        self.losses = np.where(thin[a] | thin[b], 0.0, np.maximum(own[a] + own[b] - one, 0.0))

    def is_sound(self, model: LowRankParameters) -> bool:
        """Whether no more components are thin than before."""
        before, after = (np.count_nonzero(each.weights < self._least_share) for each in (self._mixture, model))
        return bool(after <= before)

    def after(self, changes: list[Change]) -> LowRankParameters:
        """The mixture after some exchanges: of those merged the first stays, the other is the second half."""
        split, a, b = np.array(changes).T
        which = np.array([np.flatnonzero((self.pairs == pair).all(axis=1))[0] for pair in np.stack([a, b], axis=1)])
        parts = {}
        for name in ("weights", "means", "loadings", "noise"):
            values, halves = getattr(self._mixture, name).copy(), getattr(self.halves, name)
            values[a], values[split], values[b] = (
                getattr(self.merged, name)[which],
                halves[2 * split],
                halves[2 * split + 1],
            )
            parts[name] = values
        parts["weights"] /= parts["weights"].sum()
        return replace(self._mixture, **parts)


def close_pairs(mixture: LowRankParameters) -> I64:
    """Every component with those whose means are least far off under its covariance; (n, 2), a < b.

    By variances of columns alone two parts of one component would be far from each other along its factors.
    """
    C = mixture.n_components
    away = mixture.means[None, :, :] - mixture.means[:, None, :]
    inner = away @ mixture.directions.transpose(0, 2, 1)
    distances = np.einsum("abd,abd,ad->ab", away, away, mixture.precisions) - np.einsum("abq,abq->ab", inner, inner)
    np.fill_diagonal(distances, np.inf)
    closest = np.argsort(distances, axis=1, kind="stable")[:, : min(N_CLOSE, C - 1)]
    pairs = np.stack([np.repeat(np.arange(C), closest.shape[1]), closest.ravel()], axis=1)
    return np.unique(np.sort(pairs, axis=1), axis=0)


def in_halves(mixture: LowRankParameters) -> LowRankParameters:
    """Every component twice, at 2c and 2c + 1, one standard deviation away on either side along its longest factor."""
    _, axes = np.linalg.eigh(mixture.loadings @ mixture.loadings.transpose(0, 2, 1))
    steps = np.einsum("cq,cqd->cd", axes[:, :, -1], mixture.loadings)
    means = np.stack([mixture.means + steps, mixture.means - steps], axis=1).reshape(-1, mixture.n_features)
    loadings, noise = np.repeat(mixture.loadings, 2, axis=0), np.repeat(mixture.noise, 2, axis=0)
    return replace(mixture, weights=np.repeat(mixture.weights / 2, 2), means=means, loadings=loadings, noise=noise)
