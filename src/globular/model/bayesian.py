"""Gaussian mixtures whose parameters all have priors, as in scikit-learn's `BayesianGaussianMixture`.

    sticks v_c ~ Beta(1, γ), or weights ~ Dirichlet(γ, …, γ);   Λ_c ~ Wishart(ν₀, S₀⁻¹),  μ_c ~ N(m₀, (β₀ Λ_c)⁻¹)

Deviations from the exact posteriors (Bishop 2006, 10.2) are scikit-learn's: variances have the digammas of matrices,
the last stick leaves a rest that nobody has, and the bound lacks constants and what `reg_covar` does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, digamma, gammaln

from globular.lazy import cached_property
from globular.model.covariances import FAMILIES
from globular.model.dirichlet import StickPrior, Sticks
from globular.model.observations import ExpectedMixture, ObservedMoments
from globular.model.statistics import F64


@dataclass(frozen=True, eq=False)
class BayesianPosterior:
    """q of the weights, means and precisions of C components."""

    concentration: F64
    """Parameters of the sticks (2, C), or of a Dirichlet distribution (C,)."""
    beta: F64
    """(C,): rows' worth of knowledge of the mean."""
    m: F64
    """(C, D)."""
    nu: F64
    """Degrees of freedom, (C,), or () where all components have one covariance."""
    covariances: F64
    """S / ν, in the shape of the family."""
    covariance_type: str

    @cached_property
    def _sticks(self) -> Sticks:
        return Sticks(StickPrior(), *self.concentration)

    @property
    def weights(self) -> F64:
        """Expected weights, which add up to one."""
        found = self.concentration if self.concentration.ndim == 1 else self._sticks.weights
        return np.asarray(found / found.sum())

    @cached_property
    def _halves(self) -> F64:
        """Arguments of digammas and gammas, (…, D)."""
        return np.asarray(0.5 * (self.nu[..., None] - np.arange(self.m.shape[1])))

    @cached_property
    def mixture(self) -> ExpectedMixture:
        """exp E[log π_c + log N(x; μ_c, Λ_c⁻¹)]."""
        a, D = self.concentration, self.m.shape[1]
        log_weights = digamma(a) - digamma(a.sum()) if a.ndim == 1 else self._sticks.log_weights
        lacking = 0.5 * (digamma(self._halves).sum(axis=-1) - D * np.log(0.5 * self.nu) - D / self.beta)
        return ExpectedMixture.build(log_weights + lacking, self.m, self.covariances, self.covariance_type)

    def bound(self, entropy: float) -> float:
        """A lower bound of the log-evidence up to constants, given the entropy of the responsibilities."""
        a, (C, D), nu = self.concentration, self.m.shape, self.nu
        log_roots = self.mixture.family.half_log_determinants(self.mixture.factors, C, D) - 0.5 * D * np.log(0.5 * nu)
        of_precisions = float((nu * log_roots + gammaln(self._halves).sum(axis=-1)).sum())
        of_weights = gammaln(a).sum() - gammaln(a.sum()) if a.ndim == 1 else betaln(*a).sum()
        return float(entropy + of_precisions + of_weights - 0.5 * D * np.log(self.beta).sum())


@dataclass(frozen=True, eq=False)
class BayesianPrior:
    """γ, β₀, m₀, ν₀ and S₀."""

    process: bool
    """Whether the weights are broken from a stick (Dirichlet process)."""
    concentration: float
    beta: float
    m: F64
    nu: float
    S: F64
    """One covariance, in the shape of its family."""
    added: F64
    """What is added to the covariance of every component, `reg_covar`."""
    covariance_type: str

    def update(self, moments: ObservedMoments) -> BayesianPosterior:
        """The posterior that belongs to these responsibilities."""
        (C, D), counts, away = moments.means.shape, moments.counts, moments.means - self.m
        family = FAMILIES[self.covariance_type]
        sticks = Sticks.from_counts((1.0, self.concentration), counts)
        concentration = np.stack([sticks.first, sticks.second]) if self.process else self.concentration + counts
        beta = self.beta + counts
        m = self.m + (counts / beta)[:, None] * away
        S = moments.scatter + moments.kind.outer(counts * self.beta / beta, away)
        entry = family.scatter.entry(D)
        S = S.reshape(C, *entry) / (1 if entry else D) + np.multiply.outer(counts, self.added)
        nu = np.asarray(self.nu + (counts.mean() if family.tied else counts))
        S = self.S + (S.mean(axis=0) if family.tied else S)
        return BayesianPosterior(concentration, beta, m, nu, (S.T / nu).T, self.covariance_type)
