"""Exchanges of mixture components that EM cannot make: one becomes two and two others one (see `search`).

In most local maxima two components share what one would do, and one holds what two should.

- *Where a second component would gain most*: rows go to their most likely component, and inside every one of them a
  mixture of two halves is fitted by a few EM steps, all components in the same passes at two densities a row. The gain
  is against one Gaussian with the moments of both halves.
- *What is spare*: pairs of close components, by what the likelihood would lose if one Gaussian with the moments of both
  stood in their place. That follows from the statistics of an E-step without another look at the rows.
- *Thin components*, of fewer rows than their covariance has need of, make the likelihood as high as one likes and mean
  nothing. No exchange may leave one, and those that are there are the first to be spare. Where all share one covariance
  there are none: what a few rows far off have to themselves no longer widens all the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from globular.algorithms.mixtures.em import COLD, EMOptions, covariance_limits, em
from globular.algorithms.search import Change, Prospects, search
from globular.algorithms.steps import Step
from globular.model.covariances import CentralMoments
from globular.model.gaussian import GaussianParameters, m_step
from globular.model.observations import ObservedMoments
from globular.model.statistics import F64, I64, SoftStatistics
from globular.seam.mixture_passes import Expect, ExpectWithin, LabelByDensity
from globular.seam.shard import Shard

CUTS = 4
"""EM steps inside every component; larger = better halves, at two densities a row each."""
N_CLOSE = 4
"""Closest components that each may be merged with."""
ROUGH_TOL = 1e-2
"""EM before the first exchange ends when a step gains less than this, in nats a row."""


def search_by_moves(
    shard: Shard, start: GaussianParameters, options: EMOptions, max_steps: int, rng: np.random.Generator
) -> Iterator[Step[GaussianParameters]]:
    """EM steps, and exchanges that take about `max_steps` more at most; every step holds the best mixture so far.

    Its objective is the log-likelihood of the rows under that mixture, or a little less: that of one EM step before.
    """
    options = replace(options, limits=covariance_limits(shard, options))
    for step in em(shard, start, replace(options, tol=max(options.tol, ROUGH_TOL))):
        best = replace(step, stopped="")
        yield best

    def iterate(mixture: GaussianParameters, n: int) -> Iterator[Step[GaussianParameters]]:
        return em(shard, mixture, replace(options, max_iter=n, tol=0.0))

    draw = partial(GaussianProspects, shard, options=options, rng=rng)
    yield from search(best, draw, iterate, max_steps, worth_keeping=1e-4 * shard.total_weight)


class GaussianProspects(Prospects[GaussianParameters]):
    """What two halves in the place of each component would gain, and what close pairs would lose as one."""

    def __init__(
        self,
        shard: Shard,
        mixture: GaussianParameters,
        options: EMOptions,
        rng: np.random.Generator,
        found: SoftStatistics | None = None,
    ) -> None:
        """With an E-step of the mixture, where somebody has it."""
        if found is None or len(found.scatter) < mixture.n_components:  # those of a tied covariance come together
            found = shard.run(Expect(mixture))
        family, self._total_weight = mixture.family, shard.total_weight
        self._limits, self._learned_weights = covariance_limits(shard, options), options.learned_weights
        self._least_share = family.least_rows(mixture.n_features) / shard.n_rows
        self._mixture = mixture
        self._moments = ObservedMoments.from_pass(mixture, found)
        self.objective = found.log_likelihood
        self._cut(shard, rng)
        self._pair()
        self.n_distances = 2 * found.n_distances + 2 * CUTS * shard.n_rows

    def _cut(self, shard: Shard, rng: np.random.Generator) -> None:
        """Halves of every component c, at 2c and 2c + 1."""
        mixture, moments = self._mixture, self._moments
        shard.run(LabelByDensity(mixture))
        twice = np.repeat(np.arange(len(moments)), 2)
        steps = _long_steps(moments, rng)[twice]
        steps[1::2] *= -1.0
        covariances = COLD * mixture.family.pick(mixture.covariances, twice)
        halves = GaussianParameters(
            mixture.weights[twice] / 2, moments.means[twice] + steps, covariances, mixture.covariance_type
        )
        for _ in range(CUTS):
            found = shard.run(ExpectWithin(halves, 2))
            own = ObservedMoments.from_pass(halves, found.parts)
            halves = m_step(halves, found.parts, self._limits)
            if mixture.family.tied:
                halves = replace(halves, covariances=mixture.covariances)
        both = own.merged(2 * np.arange(len(moments)), 2 * np.arange(len(moments)) + 1)
        self.gains = found.log_likelihoods - _log_likelihoods(self.fitted(both), both)
        self.gains[own.counts.reshape(-1, 2).min(axis=1) < self._least_share * self._total_weight] = 0.0
        self.halves = halves

    def _pair(self) -> None:
        """Close components a and b, and the loss of their merger."""
        moments = self._moments
        self.pairs = close_pairs(self._mixture.means, self._mixture.variances())
        self.losses = np.empty(0)
        if not len(self.pairs):
            return  # one component has no other
        a, b = self.pairs.T
        merged = moments.merged(a, b)
        own = _log_likelihoods(self.fitted(moments), moments)
        together = _log_likelihoods(self.fitted(merged), merged)
        thin = moments.counts < self._least_share * self._total_weight
        self.losses = np.where(thin[a] | thin[b], 0.0, own[a] + own[b] - together)

    def fitted(self, moments: ObservedMoments) -> GaussianParameters:
        """Gaussians with these moments, their weights those of a mixture of all rows; a tied covariance stays."""
        mixture = self._mixture
        covariances = mixture.covariances
        if not mixture.family.tied:
            central = CentralMoments(moments.counts, np.zeros_like(moments.means), moments.scatter, moments.counts > 0)
            anything = mixture.family.isotropic(1.0, *moments.means.shape)
            covariances = mixture.family.estimate(central, anything, self._limits)
        weights = np.maximum(moments.counts / self._total_weight, 1e-300)  # so that its logarithm exists
        if not self._learned_weights:
            weights = np.full(len(moments), 1.0 / mixture.n_components)
        return GaussianParameters(weights, moments.means, covariances, mixture.covariance_type)

    def merged(self, a: I64, b: I64) -> GaussianParameters:
        """One component in the place of each of these pairs."""
        return self.fitted(self._moments.merged(a, b))

    def is_sound(self, model: GaussianParameters) -> bool:
        """Whether no more components are thin than before."""
        before, after = (np.count_nonzero(each.weights < self._least_share) for each in (self._mixture, model))
        return bool(after <= before)

    def grown(self, n: int) -> GaussianParameters | None:
        """The mixture with halves in the place of the `n` components that gain most; None if fewer gain anything."""
        split = np.argsort(-self.gains, kind="stable")[:n]
        if len(split) < n or self.gains[split[-1]] <= 0.0:
            return None
        return self._with(self.halves.pick(np.concatenate([2 * split, 2 * split + 1]).tolist()), split)

    def reduced(self) -> GaussianParameters | None:
        """The mixture with one component in the place of the two that lose least; None if there is but one."""
        if not len(self.losses):
            return None
        pair = self.pairs[np.argmin(self.losses)]
        return self._with(self.merged(pair[:1], pair[1:]), pair)

    def _with(self, new: GaussianParameters, gone: I64) -> GaussianParameters:
        """The mixture with new components behind those that have not gone."""
        old = self._mixture.pick(np.delete(np.arange(len(self.gains)), gone).tolist())
        covariances = old.covariances
        if not old.family.tied:
            covariances = np.concatenate([old.covariances, new.covariances])
        weights = np.concatenate([old.weights, new.weights])
        if not self._learned_weights:
            weights = np.ones(len(weights))
        means = np.concatenate([old.means, new.means])
        return GaussianParameters(weights / weights.sum(), means, covariances, old.covariance_type)

    def after(self, changes: list[Change]) -> GaussianParameters:
        """The mixture after some exchanges: of those merged the first stays, the other is the second half."""
        mixture = self._mixture
        split, a, b = np.array(changes).T
        merged = self.merged(a, b)
        weights, means, covariances = mixture.weights.copy(), mixture.means.copy(), mixture.covariances.copy()
        every = np.arange(len(changes))
        for places, source, chosen in (
            (a, merged, every), (split, self.halves, 2 * split), (b, self.halves, 2 * split + 1)
        ):  # fmt: skip
            weights[places], means[places] = source.weights[chosen], source.means[chosen]
            if not mixture.family.tied:
                covariances[places] = source.covariances[chosen]
        if not self._learned_weights:
            weights = mixture.weights
        return GaussianParameters(weights / weights.sum(), means, covariances, mixture.covariance_type)


def _log_likelihoods(gaussians: GaussianParameters, moments: ObservedMoments) -> F64:
    """Σ w log π_c N(x; μ_c, Σ_c) of rows with these moments, about the same means, (C,)."""
    squares = gaussians.each(gaussians.precisions) * moments.scatter
    return moments.counts * gaussians.log_constants - 0.5 * squares.reshape(len(moments), -1).sum(axis=1)


def _long_steps(moments: ObservedMoments, rng: np.random.Generator) -> F64:
    """For every component a step of one standard deviation in a direction in which it is long, (C, D)."""
    steps = rng.standard_normal(moments.means.shape)
    for _ in range(3):  # a random step times a power of the covariance points where the component is long
        longer = moments.kind.times(moments.scatter, steps)
        lengths = np.linalg.norm(longer, axis=1, keepdims=True)
        steps = np.divide(longer, lengths, out=np.zeros_like(steps), where=lengths > 0)
    variances = np.einsum("cd,cd->c", steps, moments.kind.times(moments.scatter, steps))
    return steps * np.sqrt(np.maximum(variances, 0.0) / np.maximum(moments.counts, 1e-300))[:, None]


def close_pairs(means: F64, variances: F64, tiny: float = 0.0) -> I64:
    """Every component with its closest others, by distances in units of their own variances; (n, 2), a < b."""
    n_close, pairs = min(N_CLOSE, len(means) - 1), set()
    for c, mean in enumerate(means):
        distances = ((means - mean) ** 2 / (variances + variances[c] + tiny)).sum(axis=1)
        distances[c] = np.inf
        pairs |= {(min(c, other), max(c, other)) for other in np.argsort(distances, kind="stable")[:n_close].tolist()}
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
