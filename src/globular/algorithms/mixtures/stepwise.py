"""Stepwise EM: batches of rows come one by one and are not kept; what they have said is kept as sufficient statistics.

    S ← (1 − η) S + η s        s the statistics of a batch of weight w under the mixture before it, per unit of weight
    M-step from S              η = (w / W)^κ, W the weight of all rows so far, this batch included

With κ = 1 every row counts the same, also those of the first batches, whose responsibilities come from a mixture that
knew little. With a smaller κ they are forgotten in time: of batches of equal size the t-th has η = t^−κ, which for
½ < κ ≤ 1 still goes to zero slowly enough to converge. A batch that holds all the weight there is makes an EM step.

Statistics need no memory of their own: a mixture and the weight of its components are statistics about their own means,
up to `reg_covar`, which is taken off the covariances before and added again by the M-step. In mixtures of exponential
families it is the pseudo-rows of the prior that are taken off the means.

To forget at a steady rate δ, rows weigh less with every batch: W ← (1 − δ^{1/κ}) W + w ends at w δ^{−1/κ}, where η = δ.

[Cappé and Moulines 2009; Liang and Klein 2009]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from globular.algorithms.mixtures.em import EMOptions
from globular.algorithms.mixtures.probing import find_members
from globular.model.covariances import CovarianceLimits
from globular.model.exponential import PseudoRows
from globular.model.exponential.family import LinearStatistics
from globular.model.gaussian import GaussianParameters, m_step
from globular.model.statistics import F64, ColumnMoments, SoftStatistics
from globular.seam.among import Probe
from globular.seam.mixture_passes import Expect, ExpectLinear
from globular.seam.shard import Shard

KAPPA = 0.7
"""κ, how slowly the past is forgotten; smaller = faster."""


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """A mixture, and the rows that it has learned from."""

    mixture: Any
    """A mixture of Gaussians, or one of an exponential family."""
    counts: F64
    """Σ w q of every component, (C,), over all rows so far; all 0 of a mixture that no rows stand behind."""

    @property
    def total_weight(self) -> float:
        """The weight of the rows."""
        return float(self.counts.sum())

    def faded(self, decay: float) -> Learned:
        """The same with rows that weigh less, so that in the end each of many equal batches has this share."""
        return Learned(self.mixture, self.counts * (1.0 - decay ** (1.0 / KAPPA)))

    def kept(self, weight: float, kappa: float) -> float:
        """What a row counts beside the rows of a new batch of this weight; 0 without rows."""
        total = self.total_weight
        if total == 0:
            return 0.0
        rate = (weight / (total + weight)) ** kappa
        return weight * (1.0 - rate) / (rate * total)

    def column_moments(self) -> ColumnMoments:
        """Those of the rows, as far as the mixture knows them."""
        shares = self.counts / self.total_weight
        means = self.mixture.means
        mean = shares @ means
        variance = shares @ (self.mixture.variances() + np.square(means - mean))
        return ColumnMoments(((self.total_weight, mean, variance),))

    def scatter(self, limits: CovarianceLimits) -> F64:
        """Second moments about the means, as in `SoftStatistics`."""
        kind, D = self.mixture.family.scatter, self.mixture.n_features
        reg_covar = limits.reg_covar if kind.entry(D) else np.mean(limits.reg_covar)
        added = kind.diagonal(np.broadcast_to(reg_covar, D))
        return np.asarray(kind.moments(self.mixture.each(self.mixture.covariances) - added, self.counts, D))

    def sums(self, smoothing: float) -> F64:
        """Σ w q x of every component of an exponential family, (C, D): its means without the pseudo-rows of the fit."""
        total, weight = self.total_weight, smoothing * self.total_weight / len(self.counts)
        both = self.mixture.row_means * (self.counts + weight)[:, None]
        sums = both - weight * self.mixture.prior_mean(both.sum(axis=0) / (total * (1.0 + smoothing)))
        return sums if self.mixture.unit_rows else np.maximum(sums, 0.0)


@dataclass(frozen=True, slots=True)
class StepwiseResult:
    """After a batch."""

    learned: Learned
    log_likelihood: float
    """Mean of the batch's rows, under the mixture before."""
    n_distances: int


@dataclass(frozen=True, slots=True)
class BatchCandidates:
    """How rows find the few components that they look at."""

    n: int
    """C′, components that a row looks at."""
    rng: np.random.Generator
    """Draws the cells of a batch; other ones every time, since the same would miss the same components again."""


def one_batch(
    shard: Shard, before: Learned, options: EMOptions, among: BatchCandidates | None = None, kappa: float = KAPPA
) -> StepwiseResult:
    """An E-step on the batch, exact or among a few components of each row, and an M-step from all so far."""
    found = _expect(shard, before.mixture, among)
    total = before.total_weight
    moments = shard.column_moments()
    here = ColumnMoments(((found.total_weight, *moments),))
    together = here if total == 0 else before.column_moments() + here
    limits = CovarianceLimits.for_data(options.reg_covar, together.mean, together.variance, options.relative_floor)
    statistics = found
    if total > 0:
        keep = before.kept(found.total_weight, kappa)
        statistics = SoftStatistics(
            keep * before.counts + found.counts, found.sums, keep * before.scatter(limits) + found.scatter,
            found.log_likelihood, keep * total + found.total_weight, found.n_distances,
        )  # fmt: skip
    mixture = m_step(before.mixture, statistics, limits, learned_weights=options.learned_weights)
    return _result(before, mixture, statistics.counts, found)


def one_linear_batch(
    shard: Shard, before: Learned, smoothing: float, kappa: float = KAPPA, *, learned_weights: bool = True
) -> StepwiseResult:
    """The same of an exponential family; the log-likelihood lacks the base measure."""
    found = shard.run(ExpectLinear(before.mixture.linear))
    counts, sums, keep = found.counts, found.sums, before.kept(found.total_weight, kappa)
    if keep > 0:
        counts, sums = counts + keep * before.counts, sums + keep * before.sums(smoothing)
    total, family = found.total_weight + keep * before.total_weight, type(before.mixture)
    prior = PseudoRows(smoothing * total / len(counts), family.prior_mean(sums.sum(axis=0) / total))
    return _result(before, prior.m_step(family, counts, sums, learned_weights=learned_weights), counts, found)


def _result(before: Learned, mixture: Any, counts: F64, found: SoftStatistics | LinearStatistics) -> StepwiseResult:
    """After a batch; counts are scaled to the weight of all rows."""
    unit = (before.total_weight + found.total_weight) / float(counts.sum())
    bound = found.log_likelihood / found.total_weight
    return StepwiseResult(Learned(mixture, counts * unit), bound, found.n_distances)


def _expect(shard: Shard, mixture: GaussianParameters, among: BatchCandidates | None) -> SoftStatistics:
    """Sums about the means of the mixture, as arrays of NumPy wherever the rows lie."""
    n_distances = 0
    if among is None:
        found = shard.run(Expect(mixture))
    else:
        n_distances = find_members(shard, mixture, among.n, among.rng)
        found = shard.run(Expect(mixture, Probe(None, 0, among.n)))
    counts, sums, scatter = map(np.asarray, (found.counts, found.sums, found.scatter))
    n_distances += found.n_distances
    return SoftStatistics(counts, sums, scatter, found.log_likelihood, found.total_weight, n_distances)
