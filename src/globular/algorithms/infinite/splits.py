"""Trials of splits (Kurihara 2006, section 7, step 2): which components would lower the free energy as two?

A trial works on the share of one component, its parent, and changes nothing else: the children share all the mass of
the parent. With everything else fixed the change of F has four parts: the divergences of the posteriors against that
of the parent, those of the sticks, what the shorter sticks cost the components behind, and the log-normalisers of the
share under the children against the parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from globular.algorithms.infinite.data import Share
from globular.model.covariances import FAMILIES, one_for_all
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.observations import Moments, Prior
from globular.model.statistics import F64, I64, SoftStatistics
from globular.model.sticks import StickPrior, Sticks
from globular.threads import map_all

_COLD = 1e-3
"""Share of a variance at which responsibilities are all but hard."""
_STEADY = 1e-3
"""Children have converged when F changes by less than this per unit of weight."""
_CAUTION = 2.0
"""How many times more than a geometric series promises F may still fall."""


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A split that was tried."""

    component: int
    gain: float
    """By how much F falls; not positive where it rises."""
    children: Moments
    """The children that it leaves."""
    n_distances: int
    n_seen: int
    """Cells or rows that the component was seen in."""


@dataclass(frozen=True, slots=True)
class SplitRules:
    """When a split is worth it, and how hard to look."""

    alpha: StickPrior
    """The prior of the sticks."""
    epsilon: float
    """F has to fall by more than this."""
    gain: float
    """F has to fall by more than this per row of the parent, too."""
    smallest: float
    """Every child has to hold this much weight."""
    n_updates: int = 6
    """Most updates of the children."""
    n_halvings: int = 3
    """How often halves are halved again before a split is given up."""


def try_splits(
    shares: Sequence[Share],
    components: I64,
    moments: Moments,
    behind: list[float],
    prior: Prior,
    rules: SplitRules,
    n_threads: int = 1,
) -> list[Trial]:
    """A trial for each of the components, so many side by side.

    `behind` are Σ_n q(z_n = j) of all components j behind each of them, the tail included.
    """

    def attempt(work: tuple[Share, int, float]) -> Trial:
        share, c, mass = work
        return _try_split(share, c, moments.take(slice(c, c + 1)), mass, prior, rules)

    works = list(zip(shares, components.tolist(), behind, strict=True))
    return map_all(attempt, works, n_threads)


def _try_split(share: Share, component: int, parent: Moments, behind: float, prior: Prior, rules: SplitRules) -> Trial:
    """Steps 2b and 2c: halves at the bisector, then updates of the children alone.

    Deviation: where two halves do not pay, the halves are halved again. A ring of clusters is worth its parts, but not
    two half rings.
    """
    local = LocalRun(share, rules.alpha.behind(component), behind, prior)
    needed = max(rules.epsilon, rules.gain * float(parent.counts[0]))
    before = local.free_energy(parent)
    children = local.updated
    for _ in range(rules.n_halvings):
        halves = local.bisect(children)
        if halves is None or halves.counts.min() < rules.smallest:
            break
        F, fall = np.inf, 0.0
        for n_left in reversed(range(rules.n_updates)):
            earlier, F = F, local.free_energy(halves)
            halves = local.updated
            steeper, fall = fall, earlier - F
            hopeless = fall < steeper < np.inf and before - F + _fall_to_come(steeper, fall, n_left) < needed
            if fall < _STEADY * float(parent.counts[0]) or hopeless:
                break
        held = halves.counts >= rules.smallest
        if held.sum() < 2:
            break
        if not held.all():  # too many parts for what is there: those left share all of it
            F = local.free_energy(halves.take(held))
            halves = local.updated
        gain = before - F
        if gain > needed:
            return Trial(component, gain, halves, local.n_distances, len(share))
        children = halves
    return Trial(component, 0.0, parent, local.n_distances, len(share))


def cold_mixture(means: F64, covariance: F64, covariance_type: str) -> GaussianParameters:
    """Equal components so much colder than `covariance` that every row goes to the closest mean in its units."""
    family = one_for_all(FAMILIES[covariance_type])  # equal covariances need one factor
    covariances = np.broadcast_to(_COLD * covariance, family.shape(*means.shape))
    return GaussianParameters(np.full(len(means), 1.0 / len(means)), means, covariances, family.name)


def _fall_to_come(steeper: float, fall: float, n_left: int) -> float:
    """About the most that F falls by in the updates left, if they slow down as the last two did, twice over."""
    ratio = fall / steeper
    return fall * min(n_left, _CAUTION * ratio / (1.0 - ratio))


class LocalRun:
    """Updates of a few components on a share."""

    def __init__(self, share: Share, alpha: StickPrior, behind: float, prior: Prior) -> None:
        self._share, self._alpha, self._behind, self._prior = share, alpha, behind, prior
        self.n_distances = 0
        self.updated: Moments
        """What the pass of the last `free_energy` makes of the components."""

    def free_energy(self, moments: Moments) -> float:
        """The terms of F that these components have a part in."""
        moments = moments.take(np.argsort(-moments.counts, kind="stable"))
        sticks = Sticks.from_counts(self._alpha, moments.counts, self._behind)
        posterior = self._prior.update(moments)
        mixture = posterior.expected_mixture(sticks.log_weights)
        statistics = self._e_step(mixture)
        self.updated = Moments.from_pass(mixture, statistics)
        of_parameters = sticks.divergences().sum() + posterior.divergences().sum()
        of_those_behind = self._behind * sticks.log_rests.sum()
        return float(of_parameters - of_those_behind - statistics.log_likelihood)

    def bisect(self, moments: Moments) -> Moments | None:
        """Every component in two, either side of its mean along its principal component; None if one has no width."""
        metric, means = self._prior.metric, moments.means
        seen = self._by_column(moments)
        counts = np.maximum(seen.counts, 1e-300).reshape(-1, *[1] * (seen.scatter.ndim - 1))
        # Deviation: in units of the prior, not of the columns, so that no column drowns the others.
        steps, variances = seen.kind.principal_steps(seen.scatter / counts, metric)
        if not variances.min() > 0:
            return None
        # every row goes to the closest of the points one standard deviation out
        ends = np.concatenate([means + steps, means - steps])
        cold = cold_mixture(ends, float(variances.min()) * metric, self._prior.covariance_type)
        return Moments.from_pass(cold, self._e_step(cold))

    def _by_column(self, moments: Moments) -> Moments:
        """The same components with second moments that know columns apart, seen again where theirs do not."""
        if moments.kind.by_column is moments.kind:
            return moments
        closest = isotropic_mixture(moments.means, max(float(moments.scatter.min()), 1e-300) * _COLD, "diag")
        return Moments.from_pass(closest, self._e_step(closest))

    def _e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        statistics = self._share.e_step(mixture)
        self.n_distances += statistics.n_distances
        return statistics
