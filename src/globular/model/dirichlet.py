"""Dirichlet process mixtures: sticks and component posteriors together, and what follows from both (Kurihara 2006)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from globular.model.observations import ExpectedMixture, Moments, Posterior, Prior, Students, log_total
from globular.model.statistics import F64
from globular.model.sticks import StickPrior, Sticks
from globular.threads import cached_property

P = TypeVar("P", bound=Posterior)


@dataclass(frozen=True, eq=False)
class InfiniteMixture(Generic[P]):
    """q(W) of Eq. 4 without the labels: T components of their own, and the prior beyond them."""

    sticks: Sticks
    posterior: P
    tail: P
    """The prior as a posterior: what every component beyond T has."""

    @classmethod
    def update(
        cls,
        prior: Prior,
        alpha: StickPrior | tuple[float, float],
        moments: Moments,
        tail_count: float = 0.0,
        *,
        closed: bool = False,
    ) -> InfiniteMixture[Posterior]:
        """The parameters of smallest free energy given responsibilities (Eqs. 17 and 18, 20 and 21)."""
        sticks = Sticks.from_counts(alpha, moments.counts, tail_count, closed=closed)
        return InfiniteMixture(sticks, prior.update(moments), prior.itself())

    @property
    def T(self) -> int:
        return len(self.posterior)

    @cached_property
    def local(self) -> ExpectedMixture:
        """exp S_{n,i} of Eq. 7 for i ≤ T, and for the tail (Eq. 9) as one more component unless it is cut off."""
        if self.sticks.closed:
            return self.posterior.expected_mixture(self.sticks.log_weights)
        log_weights = np.append(self.sticks.log_weights, self.sticks.log_tail)
        return self.posterior.join(self.tail).expected_mixture(log_weights)

    @cached_property
    def divergence(self) -> float:
        """The first two terms of Eq. 8: how far the parameters have moved from their priors."""
        own = float(self.sticks.divergences().sum() + self.posterior.divergences().sum())
        return own + self.sticks.shared_divergence

    def free_energy(self, log_normalisers: float) -> float:
        """Eqs. 8 and 22, given Σ_n log Σ_i exp S_{n,i}."""
        return self.divergence - log_normalisers

    def students(self) -> Students | None:
        """p(x | X) as a mixture of Student-t densities, where it is one."""
        everyone, weights = self.posterior, self.sticks.weights
        if not self.sticks.closed:
            everyone, weights = everyone.join(self.tail), np.append(weights, self.sticks.remainder)
        found = everyone.students()
        with np.errstate(divide="ignore"):
            return found and found._replace(constants=found.constants + np.log(weights))

    def log_predictive(self, rows: F64) -> F64:
        """log p(x | X), Eq. 10, (N,); the bracket taken under q so that the weights sum to one."""
        with np.errstate(divide="ignore"):
            joint = self.posterior.log_predictive(rows).T + np.log(self.sticks.weights)[:, None]
            if not self.sticks.closed:
                joint = np.vstack([joint, self.tail.log_predictive(rows).T + np.log(self.sticks.remainder)])
        return log_total(joint.T)
