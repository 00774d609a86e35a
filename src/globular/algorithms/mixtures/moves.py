"""Moves that are tried out: one component becomes two and two others one, and back if the likelihood does not rise.

EM ends in the local maximum that its start lies below. In most of them two components share what one would do, and one
holds what two should; no small step leads from there to anything better. So:

- *Where a second component would gain most*: rows go to their most likely component, and inside every one of them a
  mixture of two halves is fitted by a few EM steps, all components in the same passes at two densities a row. The gain
  is against one Gaussian with the moments of both halves.
- *What is spare*: pairs of close components, by what the likelihood would lose if one Gaussian with the moments of both
  stood in their place. That follows from the statistics of an E-step without another look at the rows.
- The best moves are made, first an eighth of the components at once. A few EM steps later the likelihood is compared:
  if it is higher the new mixture stays, else the old one comes back and half as many moves are made the next time.
  After a few failures of a single move the search ends.
- *Thin components*, of fewer rows than their covariance has need of, make the likelihood as high as one likes and mean
  nothing. No move may leave one, and those that are there are the first to be spare. Where all share one covariance
  there are none: what a few rows far off have to themselves no longer widens all the others.

So the likelihood never falls. This is split-and-merge EM in the way that few clusters are searched (`kmeans.trials`).

[Ueda, Nakano, Ghahramani and Hinton 2000]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from globular.algorithms.mixtures.em import COLD, EMOptions, covariance_limits, em
from globular.algorithms.steps import Step
from globular.model.covariances import CentralMoments, CovarianceLimits
from globular.model.gaussian import GaussianParameters, m_step
from globular.model.observations import Moments
from globular.model.statistics import F64, I64, SoftStatistics
from globular.seam.mixture_passes import Expect, ExpectWithin, LabelByDensity
from globular.seam.shard import Shard

Move: TypeAlias = tuple[int, int, int]
"""A component that is split, and two that are merged."""

LEAST_RATIO = 0.2
"""A move is tried if its gain is at least this share of its loss; EM steps often make up for the rest."""
CUTS = 4
"""EM steps inside every component."""
N_POWERS = 3
"""A random step times so many powers of the covariance points where the component is long."""
N_CLOSE = 4
"""Closest components that each may be merged with."""
ROUGH_TOL = 1e-2
"""EM before the first move ends when a step gains less than this, in nats a row."""
STEPS_PER_TRIAL, STEPS_PER_DRAW = 7, 4
"""EM steps of a trial, and those that take as long as to draw halves and pairs anew."""
MAX_FAILURES = 4
"""Single moves that may fail one after the other."""
FAILURES_PER_DRAW = 2
"""Failures after which halves are drawn anew."""
ROWS_OF_A_MEAN = 4.0
"""Rows that a component needs for its mean; for every other parameter in a column it needs as many again."""
WORTH_KEEPING = 1e-4
"""Nats a row that a trial has to gain."""


def search_by_moves(
    shard: Shard, start: GaussianParameters, options: EMOptions, max_steps: int, rng: np.random.Generator
) -> Iterator[Step[GaussianParameters]]:
    """EM steps, and trials that take about `max_steps` more at most; every step holds the best mixture so far.

    Its objective is the log-likelihood of the rows under that mixture, or a little less: that of one EM step before.
    """
    scale = Scale.of(shard, start, options)
    for step in em(shard, start, replace(options, tol=max(options.tol, ROUGH_TOL))):
        best = replace(step, stopped="")
        yield best
    at_once, in_vain, n_steps, prospects = max(1, start.n_components // 8), set[Move](), 0, None
    max_failures = min(MAX_FAILURES, 1 + start.n_components // 5)
    trial = replace(options, max_iter=STEPS_PER_TRIAL, tol=0.0)
    while n_steps + STEPS_PER_TRIAL <= max_steps and len(in_vain) < max_failures:
        n_distances = 0
        if prospects is None:
            n_steps += STEPS_PER_DRAW
            if n_steps + STEPS_PER_TRIAL > max_steps:
                return
            prospects = Prospects(shard, best.model, scale, rng)
            best, n_distances = replace(best, objective=prospects.log_likelihood), prospects.n_distances
        moves = prospects.best_moves(at_once, in_vain)
        if not moves:
            return
        goal, before = best.objective + WORTH_KEEPING * shard.total_weight, -np.inf
        n_thin = scale.n_thin(best.model)
        for step in em(shard, prospects.after(moves), trial):
            # the others gain less than this one, so they would hardly reach the goal
            hopeless = step.objective + (STEPS_PER_TRIAL - step.iteration) * (step.objective - before) < goal
            success = bool(step.stopped) and step.objective > goal and scale.n_thin(step.model) <= n_thin
            best = replace(step if success else best, n_distances=n_distances + step.n_distances, stopped="")
            n_steps, n_distances, before = n_steps + 1, 0, step.objective
            yield best
            if hopeless:
                break
        if success:
            prospects = None
            in_vain.clear()
        elif len(moves) > 1:
            at_once = len(moves) // 2
        else:
            in_vain.update(moves)
            if len(in_vain) % FAILURES_PER_DRAW == 0:
                prospects = None


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """What moves are measured by."""

    total_weight: float
    limits: CovarianceLimits
    least_share: float
    """Of all rows: a component with less is thin."""
    learned_weights: bool

    @classmethod
    def of(cls, shard: Shard, mixture: GaussianParameters, options: EMOptions) -> Scale:
        least = ROWS_OF_A_MEAN * (1.0 + mixture.family.n_parameters(1, mixture.n_features) / mixture.n_features)
        if mixture.family.tied:
            least = 0.0
        limits = covariance_limits(shard, options)
        return cls(shard.total_weight, limits, least / shard.n_rows, options.learned_weights)

    def n_thin(self, mixture: GaussianParameters) -> int:
        """Components that hold too few rows to mean anything."""
        return int(np.count_nonzero(mixture.weights < self.least_share))

    def fitted(self, moments: Moments, mixture: GaussianParameters) -> GaussianParameters:
        """Gaussians with these moments, their weights those of a mixture of all rows; a tied covariance stays."""
        covariances = mixture.covariances
        if not mixture.family.tied:
            central = CentralMoments(moments.counts, np.zeros_like(moments.means), moments.scatter, moments.counts > 0)
            anything = mixture.family.isotropic(1.0, *moments.means.shape)
            covariances = mixture.family.estimate(central, anything, self.limits)
        weights = np.maximum(moments.counts / self.total_weight, 1e-300)  # so that its logarithm exists
        if not self.learned_weights:
            weights = np.full(len(moments), 1.0 / mixture.n_components)
        return GaussianParameters(weights, moments.means, covariances, mixture.covariance_type)


class Prospects:
    """What two halves in the place of each component would gain, and what close pairs would lose as one."""

    def __init__(
        self,
        shard: Shard,
        mixture: GaussianParameters,
        scale: Scale,
        rng: np.random.Generator,
        found: SoftStatistics | None = None,
    ) -> None:
        """With an E-step of the mixture, where somebody has it."""
        if found is None or len(found.scatter) < mixture.n_components:  # those of a tied covariance come together
            found = shard.run(Expect(mixture))
        self._mixture, self._scale = mixture, scale
        self._moments = Moments.from_pass(mixture, found)
        self.log_likelihood = found.log_likelihood
        self._cut(shard, rng)
        self._pair()
        self.n_distances = 2 * found.n_distances + 2 * CUTS * shard.n_rows
        """Densities of a row under a component that it took."""

    def _cut(self, shard: Shard, rng: np.random.Generator) -> None:
        """Halves of every component c, at 2c and 2c + 1."""
        mixture, scale, moments = self._mixture, self._scale, self._moments
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
            own = Moments.from_pass(halves, found.parts)
            halves = m_step(halves, found.parts, scale.limits)
            if mixture.family.tied:
                halves = replace(halves, covariances=mixture.covariances)
        both = own.merged(2 * np.arange(len(moments)), 2 * np.arange(len(moments)) + 1)
        self._gains = found.log_likelihoods - _log_likelihoods(scale.fitted(both, mixture), both)
        self._gains[own.counts.reshape(-1, 2).min(axis=1) < scale.least_share * scale.total_weight] = 0.0
        self._halves = halves

    def _pair(self) -> None:
        """Close components a and b, and the loss of their merger."""
        mixture, scale, moments = self._mixture, self._scale, self._moments
        self._a, self._b = _close_pairs(mixture)
        self._merged = moments.merged(self._a, self._b)
        self._losses = np.empty(0)
        if not len(self._a):
            return  # one component has no other
        own = _log_likelihoods(scale.fitted(moments, mixture), moments)
        together = _log_likelihoods(scale.fitted(self._merged, mixture), self._merged)
        thin = moments.counts < scale.least_share * scale.total_weight
        self._losses = np.where(thin[self._a] | thin[self._b], 0.0, own[self._a] + own[self._b] - together)

    def best_moves(self, at_most: int, in_vain: set[Move]) -> list[Move]:
        """The most promising moves that have no component in common, without those known to be in vain."""
        moves: list[Move] = []
        settled = np.zeros(len(self._gains), dtype=bool)
        spares = [(int(self._a[i]), int(self._b[i]), self._losses[i]) for i in np.argsort(self._losses, kind="stable")]
        for split in np.argsort(-self._gains, kind="stable").tolist():
            for a, b, loss in [] if settled[split] or self._gains[split] <= 0 else spares:
                if self._gains[split] <= LEAST_RATIO * loss:
                    break
                if split in (a, b) or settled[[a, b]].any() or (split, a, b) in in_vain:
                    continue
                settled[[split, a, b]] = True
                moves.append((split, a, b))
                break
            if len(moves) == at_most:
                break
        return moves

    def grown(self, n: int) -> GaussianParameters | None:
        """The mixture with halves in the place of the `n` components that gain most; None if fewer gain anything."""
        mixture, split = self._mixture, np.argsort(-self._gains, kind="stable")[:n]
        if len(split) < n or self._gains[split[-1]] <= 0.0:
            return None
        others, halves = np.delete(np.arange(len(self._gains)), split), self._halves
        both = np.concatenate([2 * split, 2 * split + 1])
        return self._joined(mixture.pick(others.tolist()), halves.pick(both.tolist()))

    def reduced(self) -> GaussianParameters | None:
        """The mixture with one component in the place of the two that lose least; None if there is but one."""
        if not len(self._losses):
            return None
        pair = int(np.argmin(self._losses))
        merged = self._scale.fitted(self._merged.take([pair]), self._mixture)
        others = np.delete(np.arange(len(self._gains)), [self._a[pair], self._b[pair]])
        return self._joined(self._mixture.pick(others.tolist()), merged)

    def _joined(self, some: GaussianParameters, more: GaussianParameters) -> GaussianParameters:
        """The components of both."""
        covariances = some.covariances
        if not some.family.tied:
            covariances = np.concatenate([some.covariances, more.covariances])
        weights = np.concatenate([some.weights, more.weights])
        if not self._scale.learned_weights:
            weights = np.ones(len(weights))
        means = np.concatenate([some.means, more.means])
        return GaussianParameters(weights / weights.sum(), means, covariances, some.covariance_type)

    def after(self, moves: list[Move]) -> GaussianParameters:
        """The mixture after some moves: of those merged the first stays, the other is the second half."""
        mixture, scale = self._mixture, self._scale
        split, a, b = np.array(moves).T
        merged = scale.fitted(self._moments.merged(a, b), mixture)
        weights, means, covariances = mixture.weights.copy(), mixture.means.copy(), mixture.covariances.copy()
        every = np.arange(len(moves))
        for places, source, chosen in (
            (a, merged, every), (split, self._halves, 2 * split), (b, self._halves, 2 * split + 1)
        ):  # fmt: skip
            weights[places], means[places] = source.weights[chosen], source.means[chosen]
            if not mixture.family.tied:
                covariances[places] = source.covariances[chosen]
        if not scale.learned_weights:
            weights = mixture.weights
        return GaussianParameters(weights / weights.sum(), means, covariances, mixture.covariance_type)


def _log_likelihoods(gaussians: GaussianParameters, moments: Moments) -> F64:
    """Σ w log π_c N(x; μ_c, Σ_c) of rows with these moments, about the same means, (C,)."""
    squares = gaussians.each(gaussians.precisions) * moments.scatter
    return moments.counts * gaussians.log_constants - 0.5 * squares.reshape(len(moments), -1).sum(axis=1)


def _long_steps(moments: Moments, rng: np.random.Generator) -> F64:
    """For every component a step of one standard deviation in a direction in which it is long, (C, D)."""
    steps = rng.standard_normal(moments.means.shape)
    for _ in range(N_POWERS):
        longer = moments.kind.times(moments.scatter, steps)
        lengths = np.linalg.norm(longer, axis=1, keepdims=True)
        steps = np.divide(longer, lengths, out=np.zeros_like(steps), where=lengths > 0)
    variances = np.einsum("cd,cd->c", steps, moments.kind.times(moments.scatter, steps))
    return steps * np.sqrt(np.maximum(variances, 0.0) / np.maximum(moments.counts, 1e-300))[:, None]


def _close_pairs(mixture: GaussianParameters) -> tuple[I64, I64]:
    """Every component with its closest others, by distances in units of their own variances; a < b."""
    C, variances = mixture.n_components, mixture.variances()
    n_close, pairs = min(N_CLOSE, C - 1), set()
    for c in range(C):
        distances = ((mixture.means - mixture.means[c]) ** 2 / (variances + variances[c])).sum(axis=1)
        distances[c] = np.inf
        pairs |= {(min(c, other), max(c, other)) for other in np.argsort(distances, kind="stable")[:n_close].tolist()}
    found = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
