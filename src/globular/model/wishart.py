"""Gaussians with unknown mean and precision: Gaussian–Wishart (full) and normal–gamma (diag) posteriors.

    q(μ, Λ) = N(μ; m, (β Λ)⁻¹) W(Λ; W, ν),   S = W⁻¹;      one column alone: Λ ~ Gamma(ν/2, S/2)

A Wishart prior of the precision is the inverse-Wishart of the covariance. Both kinds share β, m and ν; they differ in
what S is, and in how often the digamma of ν occurs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from scipy.special import digamma, gammaln

from globular.lazy import cached_property
from globular.model.covariances import FAMILIES
from globular.model.covariances.families import cholesky, inverse_factors, with_factors
from globular.model.gaussian import GaussianParameters
from globular.model.observations import ExpectedMixture, ObservedMoments, Posterior, Prior, Students
from globular.model.statistics import F64
from globular.threads.blas import single_threaded_blas

BETA_RANGE = 1e-8, 1.0
"""What a fitted β₀ may be."""
SHAPED_FROM, SHAPED_ROWS = 8, 4
"""S₀ has correlations fitted from this many components on, if they hold this many rows a column in the mean."""


class Terms(NamedTuple):
    """What free energies need of posteriors, (C,) each."""

    digammas: F64
    """E[log |Λ|] − log |2 W|."""
    traces: F64
    """tr S₀ W."""
    mahalanobis: F64
    """(m − m₀)ᵀ W (m − m₀)."""
    log_gammas: F64
    """log Γ of the normaliser, up to a constant."""
    log_determinants: F64
    """log |S|."""


@dataclass(frozen=True, eq=False)
class GaussianPosterior(Posterior):
    """Posteriors of C components, with the prior they came from: a normal–gamma posterior per column.

    `MatrixPosterior` differs in what depends on S.
    """

    beta: F64
    """(C,): rows' worth of knowledge of the mean."""
    m: F64
    """(C, D)."""
    nu: F64
    """(C,): degrees of freedom."""
    S: F64
    """W⁻¹: (C, D, D) or (C, D)."""
    prior: GaussianPrior

    covariance_type: ClassVar[str] = "diag"

    @classmethod
    def least_degrees(cls, D: int) -> int:
        """What ν has to be greater than."""
        return 0 if FAMILIES[cls.covariance_type].scatter.separable else D - 1

    @staticmethod
    def log_determinant(S: F64) -> float:
        """log |S| of one component."""
        return float(np.log(S).sum())

    @classmethod
    def summed(cls, moments: ObservedMoments, beta: F64, m: F64, nu: F64, pulled: F64, prior: GaussianPrior) -> Self:
        """Posteriors whose S is the sum of S₀, the scatter, and what distances from m₀ add to it."""
        away = moments.kind.outer(pulled, moments.means - prior.m)
        return cls(beta, m, nu, prior.S + np.maximum(moments.scatter, 0.0) + away, prior)

    def __len__(self) -> int:
        return len(self.beta)

    @property
    def means(self) -> F64:
        return self.m

    def expected_mixture(self, log_weights: F64) -> ExpectedMixture:
        """Eq. 16: precision ν W, and what E[log |Λ|] and E[μ] lack to that Gaussian's own constant."""
        D = self.m.shape[1]
        lacking = 0.5 * (self.terms.digammas - D * np.log(0.5 * self.nu)) - 0.5 * D / self.beta
        if self.prior.own is not None:
            lacking -= 0.5 * self._expected_precisions() @ self.prior.own
        return ExpectedMixture.build(
            log_weights + lacking, self.m, self.covariances, self.covariance_type, self._factors()
        )

    def predictive_mixture(self, weights: F64) -> GaussianParameters:
        """Gaussians with the means and covariances of the predictive densities."""
        inflated = (1.0 + 1.0 / self.beta) / np.maximum(self.nu - self.least_degrees(self.m.shape[1]) - 2.0, 1.0)
        covariances = self.S * inflated.reshape(-1, *[1] * (self.S.ndim - 1))
        return GaussianParameters(weights / weights.sum(), self.m, covariances, self.covariance_type)

    @property
    def covariances(self) -> F64:
        """(ν W)⁻¹, the inverse of the expected precision."""
        return self.S / self.nu.reshape(-1, *[1] * (self.S.ndim - 1))

    def divergences(self) -> F64:
        D = self.m.shape[1]
        prior = self.prior
        ratio = prior.beta / self.beta
        of_means = D * (ratio - 1.0 - np.log(ratio)) + prior.beta * self.nu * self.terms.mahalanobis
        log_determinants = self.terms.log_determinants  # of S
        expected = self.terms.digammas + D * np.log(2.0) - log_determinants  # E[log |Λ|]
        of_precisions = (
            (self.nu - prior.nu) * expected
            + self.nu * (self.terms.traces - D)
            - 2.0 * (self.terms.log_gammas - prior.log_gamma)
            - D * np.log(2.0) * (self.nu - prior.nu)
            + self.nu * log_determinants
            - prior.nu * prior.log_determinant
        )
        return 0.5 * (of_means + of_precisions)

    def log_evidences(self) -> F64:
        """Ratio of the normalisers of posterior and prior."""
        D, prior = self.m.shape[1], self.prior
        gammas = self.terms.log_gammas - prior.log_gamma
        determinants = prior.nu * prior.log_determinant - self.nu * self.terms.log_determinants
        of_means = D * np.log(prior.beta / self.beta)
        return gammas + 0.5 * (determinants + of_means - D * np.log(np.pi) * (self.nu - prior.nu))

    def _factors(self) -> F64 | None:
        """Factors of the expected precisions, if they are at hand."""
        return None

    def _expected_precisions(self) -> F64:
        """The diagonals of ν W, (C, D)."""
        return self.nu[:, None] / self.S

    @cached_property
    def terms(self) -> Terms:
        D, half, prior = self.m.shape[1], 0.5 * self.nu, self.prior
        mahalanobis = ((self.m - prior.m) ** 2 / self.S).sum(axis=1)
        traces, log_determinants = (prior.S / self.S).sum(axis=1), np.log(self.S).sum(axis=1)
        return Terms(D * digamma(half), traces, mahalanobis, D * gammaln(half), log_determinants)

    def fitted_scale(self, nu: float, floor: F64) -> F64:
        """S₀ that expects the precisions which these expect in the mean, ν₀ S₀⁻¹ = ⟨ν W⟩, and not below the floor."""
        return np.asarray(np.maximum(nu / self._expected_precisions().mean(axis=0), floor))

    def log_predictive(self, rows: F64) -> F64:
        """A product of Student-t densities with ν degrees of freedom, one a column."""
        scale = self.S * (1.0 + 1.0 / self.beta)[:, None]  # ν times the squared scale of the t density
        half = 0.5 * (self.nu + 1)
        constants = self.m.shape[1] * (gammaln(half) - gammaln(0.5 * self.nu)) - 0.5 * np.log(np.pi * scale).sum(axis=1)
        spread = np.log1p((rows - self.m[:, None]) ** 2 / scale[:, None]).sum(axis=2)
        return (constants[:, None] - half[:, None] * spread).T

    def draw(self, component: int, n: int, random: np.random.RandomState) -> F64:
        """Rows from the predictive density of a component."""
        D = self.m.shape[1]
        precision = random.chisquare(self.nu[component], size=(n, D)) / self.S[component]
        spread = np.sqrt((1.0 + 1.0 / self.beta[component]) / precision)
        return self.m[component] + spread * random.standard_normal((n, D))


class MatrixPosterior(GaussianPosterior):
    """A Gaussian–Wishart posterior."""

    covariance_type = "full"

    @staticmethod
    def log_determinant(S: F64) -> float:
        return float(np.linalg.slogdet(S)[1])

    @classmethod
    def summed(cls, moments: ObservedMoments, beta: F64, m: F64, nu: F64, pulled: F64, prior: GaussianPrior) -> Self:
        away = moments.kind.outer(pulled, moments.means - prior.m)
        S, lower = with_factors(prior.S + moments.scatter + away, np.diagonal(prior.S))
        posterior = cls(beta, m, nu, S, prior)
        posterior.__dict__["_lower"] = lower
        return posterior

    @cached_property
    def _lower(self) -> F64:
        return cholesky(self.S)

    @cached_property
    @single_threaded_blas  # the same bits for any number of threads
    def _solved(self) -> tuple[F64, F64]:
        """Factors of the expected precisions, and the terms that follow from them, (5, C)."""
        D, lower, prior = self.m.shape[1], self._lower, self.prior
        inverse, terms = inverse_factors(lower), np.empty((5, len(self)))
        halves = 0.5 * (self.nu[:, None] - np.arange(D))
        whitened, turned = np.matmul((self.m - prior.m)[:, None], inverse), np.matmul(prior.factor.T, inverse)
        digamma(halves).sum(axis=1, out=terms[0])
        np.einsum("cef,cef->c", turned, turned, out=terms[1])
        np.einsum("cdf,cdf->c", whitened, whitened, out=terms[2])
        gammaln(halves).sum(axis=1, out=terms[3])
        np.log(np.einsum("cdd->cd", lower)).sum(axis=1, out=terms[4])
        terms[4] *= 2.0
        return np.sqrt(self.nu)[:, None, None] * inverse, terms

    def join(self, other: Self) -> Self:
        joined = super().join(other)
        # factors are most of the work of a mixture this small, and both have them
        joined.__dict__["_solved"] = (
            np.concatenate([self._solved[0], other._solved[0]]),
            np.concatenate([self._solved[1], other._solved[1]], axis=1),
        )
        return joined

    @property
    def terms(self) -> Terms:
        return Terms(*self._solved[1])

    def fitted_scale(self, nu: float, floor: F64) -> F64:
        D, rows = len(floor), float(self.nu.mean())
        factors = self._solved[0]
        if len(self) < SHAPED_FROM or rows < SHAPED_ROWS * D:
            # few components would hide in S₀ the directions that they differ in
            return np.diag(np.maximum(nu / self._expected_precisions().mean(axis=0), floor))
        units = np.sqrt(floor)
        factors = factors * (units / np.sqrt(nu * len(self)))[:, None]
        precision = np.tensordot(factors, factors, axes=([0, 2], [0, 2]))  # in units of the floor
        scale = np.linalg.inv(precision) + np.eye(D)
        return np.asarray(0.5 * np.outer(units, units) * (scale + scale.T))

    def _factors(self) -> F64:
        return self._solved[0]

    def _expected_precisions(self) -> F64:
        return np.asarray((self._solved[0] ** 2).sum(axis=2))

    def students(self) -> Students:
        """Student-t densities with ν + 1 − D degrees of freedom."""
        D, ratio, powers = self.m.shape[1], 1.0 + 1.0 / self.beta, 0.5 * (self.nu + 1)
        constants = gammaln(powers) - gammaln(powers - 0.5 * D)
        constants -= 0.5 * (D * np.log(np.pi * ratio) + self.terms.log_determinants)
        return Students(self.expected_mixture(np.zeros(len(self))), constants, powers, 1.0 / (self.nu * ratio))

    def log_predictive(self, rows: F64) -> F64:
        of, whitened = self.students(), (rows - self.m[:, None]) @ self._solved[0]
        squares = np.einsum("cnd,cnd->nc", whitened, whitened)
        return np.asarray(of.constants - of.powers * np.log1p(of.scales * squares))

    def draw(self, component: int, n: int, random: np.random.RandomState) -> F64:
        D = self.m.shape[1]
        degrees = self.nu[component] + 1 - D
        spread = np.sqrt((1.0 + 1.0 / self.beta[component]) / random.chisquare(degrees, size=(n, 1)))
        return self.m[component] + spread * (random.standard_normal((n, D)) @ self._lower[component].T)


KINDS: dict[str, type[GaussianPosterior]] = {
    kind.covariance_type: kind for kind in (MatrixPosterior, GaussianPosterior)
}
"""Posteriors by the covariance family of their components."""


@dataclass(frozen=True, eq=False)
class GaussianPrior(Prior):
    """β₀, m₀, ν₀ and S₀ = W₀⁻¹, with the posteriors that it leads to."""

    kind: type[GaussianPosterior]
    beta: float
    m: F64
    nu: float
    S: F64
    """(D, D) for full covariances and (D,) for diagonal ones."""
    floor: F64 | None = None
    """If S₀ may be fitted to the components (empirical Bayes): how small its diagonal may become, (D,), in proportion
    to what it began with."""
    fits_beta: bool = False
    """Whether β₀ may be fitted as well."""
    own: F64 | None = None
    """Variances that every row has of its own, as a cell of a tree has, (D,); 0 but where all rows agree.

    Without them a precision would grow there with the rows of a component, and the largest component gain most by it.
    """

    @property
    def covariance_type(self) -> str:
        return self.kind.covariance_type

    @property
    def metric(self) -> F64:
        """What S₀ began as: fitted to the components it would hide just the columns that they differ in."""
        return self.S / self.nu if self.floor is None else self._diagonal(self.floor)

    def _diagonal(self, entries: F64) -> F64:
        return FAMILIES[self.covariance_type].scatter.diagonal(entries)

    @cached_property
    def log_determinant(self) -> float:
        """log |S₀|."""
        return self.kind.log_determinant(self.S)

    @cached_property
    def log_gamma(self) -> float:
        """log Γ of the normaliser, up to a constant."""
        return float(self.itself().terms.log_gammas[0])

    @cached_property
    def factor(self) -> F64:
        """Lower triangular factor of the matrix S₀."""
        return cholesky(self.S)

    def itself(self) -> GaussianPosterior:
        return self.kind(np.array([self.beta]), self.m[None, :], np.array([self.nu]), self.S[None], self)

    def fitted(self, posterior: Posterior) -> GaussianPrior:
        """Σ_i KL(q_i ‖ p) is smallest where the expected precisions are in the mean what the prior expects.

        Its derivative by β₀ vanishes where E[(μ − m₀)ᵀ Λ (μ − m₀)] is D / β₀ in the mean.
        """
        if self.floor is None or not isinstance(posterior, GaussianPosterior):
            return self
        prior = replace(self, S=posterior.fitted_scale(self.nu, self.floor))
        if not self.fits_beta:
            return prior
        D = len(self.m)
        away = float((D / posterior.beta + posterior.nu * posterior.terms.mahalanobis).mean())
        return replace(prior, beta=float(np.clip(D / away, *BETA_RANGE)))

    def expected_covariance(self) -> F64:
        return self.S / self.nu

    def weakened(self, share: float) -> GaussianPrior:
        return self if self.floor is None else replace(self, S=share * self.S)

    def update(self, moments: ObservedMoments) -> GaussianPosterior:
        counts, beta = moments.counts, self.beta + moments.counts
        if self.own is not None:
            own = np.multiply.outer(counts, self._diagonal(self.own))
            moments = replace(moments, scatter=moments.scatter + own)
        m = self.m + (counts / beta)[:, None] * (moments.means - self.m)
        return self.kind.summed(moments, beta, m, self.nu + counts, self.beta * counts / beta, self)
