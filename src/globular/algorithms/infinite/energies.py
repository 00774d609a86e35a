"""Free energies of many small mixtures at once, each on its share of the data, everything else fixed.

Trials of splits and merges are many, and each is a few components on a few rows: one after the other the interpreter
would do most of the work. Here the components of all of them lie one behind the other in `ObservedMoments`: a step of
all trials is one pass, and posteriors, sticks and divergences are those of one mixture of all components.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from globular.algorithms.infinite.data import Shares
from globular.algorithms.mixtures.em import COLD
from globular.model.cells import starts_of
from globular.model.covariances import FAMILIES
from globular.model.dirichlet import StickPrior, sticks_of_groups
from globular.model.observations import ExpectedMixture, ObservedMoments, Prior
from globular.model.statistics import F64, I64

_PER_COMPONENT = "spherical", "diag", "full"
"""Covariances of components by the dimensions of the metric."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Components one behind the other, of groups that each share what others hold."""

    moments: ObservedMoments
    bounds: I64
    """Those of group g are bounds[g] … bounds[g + 1] − 1."""
    seen: I64
    """The shares of the data that each is seen on, (G, n)."""
    before: I64
    """Components before each of them, (G,)."""
    behind: F64
    """What the components behind each of them hold, (G,)."""


class Measured(NamedTuple):
    """What a pass tells of groups."""

    free_energies: F64
    """The terms of F that their components have a part in, (G,)."""
    updated: ObservedMoments
    """What the pass makes of the components, the largest of a group first."""

    def each(self, groups: Groups) -> list[tuple[float, ObservedMoments]]:
        """The same of every group."""
        parts = (self.updated.take(some) for some in _slices(groups.bounds))
        return list(zip(self.free_energies.tolist(), parts, strict=True))


class Energies:
    """The shares, the prior, and the prior of the sticks: what free energies of groups depend on."""

    def __init__(self, shares: Shares, prior: Prior, alpha: StickPrior) -> None:
        self.shares, self._prior, self._alpha = shares, prior, alpha._replace(gamma=None)

    def measure(self, groups: Groups) -> Measured:
        """The free energy of each, and an update of its components."""
        bounds = groups.bounds
        number = np.repeat(np.arange(len(bounds) - 1), bounds[1:] - bounds[:-1])
        moments = groups.moments.take(np.lexsort((-groups.moments.counts, number)))
        sticks = sticks_of_groups(self._alpha, moments.counts, bounds, groups.before, groups.behind)
        posterior = self._prior.update(moments)
        mixture = posterior.expected_mixture(sticks.log_weights)
        found = self.shares.e_step(mixture, bounds, groups.seen)
        of_parameters = np.add.reduceat(posterior.divergences(), bounds[:-1]) + sticks.divergences
        return Measured(of_parameters - found.log_likelihoods, ObservedMoments.from_pass(mixture, found.parts))

    def bisect(self, groups: Groups) -> list[ObservedMoments | None]:
        """Every component in two, either side of its mean along its principal component; None if one has no width."""
        bounds, means, metric = groups.bounds, groups.moments.means, self._prior.metric
        seen = self._by_column(groups)
        counts = np.maximum(seen.counts, 1e-300).reshape(-1, *[1] * (seen.scatter.ndim - 1))
        # Deviation: in units of the prior, not of the columns, so that no column drowns the others.
        steps, variances = seen.kind.principal_steps(seen.scatter / counts, metric)
        narrowest = np.minimum.reduceat(variances, bounds[:-1])
        wide = np.flatnonzero(narrowest > 0)
        halves: list[ObservedMoments | None] = [None] * len(narrowest)
        if not len(wide):
            return halves
        # every row goes to the closest of the points one standard deviation out
        ends = [means[some] + side * steps[some] for some in _slices(bounds) for side in (1.0, -1.0)]
        means = np.concatenate([ends[2 * g + side] for g in wide for side in (0, 1)])
        sizes = 2 * np.diff(bounds)[wide]
        cold = self._cold(means, np.repeat(COLD * narrowest[wide], sizes), metric)
        bounds = starts_of(sizes)
        found = self.shares.e_step(cold, bounds, groups.seen[wide])
        updated = ObservedMoments.from_pass(cold, found.parts)
        for g, some in zip(wide.tolist(), _slices(bounds), strict=True):
            halves[g] = updated.take(some)
        return halves

    def _by_column(self, groups: Groups) -> ObservedMoments:
        """The same components with second moments that know columns apart, seen again where theirs do not."""
        moments, bounds = groups.moments, groups.bounds
        if moments.kind.by_column is moments.kind:
            return moments
        least = np.minimum.reduceat(moments.scatter.ravel(), bounds[:-1])
        variances = np.repeat(np.maximum(least, 1e-300) * COLD, np.diff(bounds))
        closest = self._cold(moments.means, variances, np.ones(moments.means.shape[1]))
        return ObservedMoments.from_pass(closest, self.shares.e_step(closest, bounds, groups.seen).parts)

    def _cold(self, means: F64, scales: F64, metric: F64) -> ExpectedMixture:
        """Equal components, each with a share of the metric for its covariance."""
        family = FAMILIES[_PER_COMPONENT[metric.ndim]]
        shape = family.shape(*means.shape)
        scales = scales.reshape(-1, *[1] * (len(shape) - 1))
        factor = family.factors(np.broadcast_to(metric, (1, *shape[1:])).copy())
        covariances = np.broadcast_to(scales * metric, shape)
        return ExpectedMixture.build(np.zeros(len(means)), means, covariances, family.name, factor / np.sqrt(scales))


def _slices(bounds: I64) -> list[slice]:
    return [slice(*pair) for pair in pairwise(bounds.tolist())]
