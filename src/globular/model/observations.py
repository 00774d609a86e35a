"""Observation models of infinite mixtures: exponential families with conjugate priors (Kurihara 2006, section 5).

An infinite mixture needs four things of its components, and nothing else in the library asks what they are made of:

- a prior that turns sufficient statistics into posteriors (`Prior.update`, Eqs. 18 and 21);
- the expected log-likelihood of a row under a posterior (Eq. 16), written as the log-density of a Gaussian, so that the
  passes of Gaussian mixtures serve all families (`Posterior.expected_mixture`);
- the divergence of a posterior from the prior (`Posterior.divergences`, Eq. 8);
- the density of a new row, the parameters integrated out (`Posterior.log_predictive`, Eq. 10).

For Gaussians Eq. 16 is a Gaussian with other constants: E log N(x | μ, Λ) = c − ½ (x − m)ᵀ (ν W) (x − m). For families
whose sufficient statistic is x itself it is linear in x, and linear functions are Gaussians of one common variance up
to a term that all components share: mᵀx/σ² = log N(x; m, σ² I) + ‖m‖²/2σ² + ‖x‖²/2σ² + const.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from globular.lazy import cached_property
from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64, SoftStatistics, joined, picked


@dataclass(frozen=True, eq=False)
class ExpectedMixture(GaussianParameters):
    """Σ_i exp S_i(x) as a mixture whose weights need not sum to one, and may be too small for a float.

    `weights` are the same weights scaled to a sum of one, for what asks for a mean or an order.
    """

    log_weights: F64
    known_factors: F64 | None = None
    """Factors of the precisions, where whoever made the mixture has them already."""

    @cached_property
    def factors(self) -> F64:
        return self.family.factors(self.covariances) if self.known_factors is None else self.known_factors

    @property
    def log_shares(self) -> F64:
        return self.log_weights

    def pick(self, components: slice | list[int]) -> ExpectedMixture:
        factors = self.known_factors
        return ExpectedMixture.build(
            self.log_weights[components],
            self.means[components],
            self.family.pick(self.covariances, components),
            self.covariance_type,
            None if factors is None else self.family.pick(factors, components),
        )

    @classmethod
    def build(
        cls, log_weights: F64, means: F64, covariances: F64, covariance_type: str, factors: F64 | None = None
    ) -> ExpectedMixture:
        """The mixture with `weights` made from their logarithms."""
        weights = np.exp(log_weights - log_weights.max())
        return cls(weights / weights.sum(), means, covariances, covariance_type, log_weights, factors)


@dataclass(frozen=True, slots=True, eq=False)
class ObservedMoments:
    """Sufficient statistics of C components, about their own means so that nothing cancels."""

    counts: F64
    """Σ w q, (C,)."""
    means: F64
    """Σ w q x / Σ w q, (C, D)."""
    scatter: F64
    """Second moment about the means, as in `SoftStatistics`."""
    kind: ScatterKind

    @classmethod
    def from_pass(cls, mixture: GaussianParameters, statistics: SoftStatistics) -> ObservedMoments:
        """From sums about the means of `mixture`."""
        counts, shifts = statistics.counts, statistics.shifts
        kind = mixture.family.scatter
        return cls(counts, mixture.means + shifts, statistics.scatter - kind.outer(counts, shifts), kind)

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, components: I64 | NDArray[np.bool_] | slice | list[int]) -> ObservedMoments:
        """Those components, in that order."""
        return picked(self, components)

    def join(self, other: ObservedMoments) -> ObservedMoments:
        """The components of both."""
        return joined([self, other])

    def about(self, means: F64) -> tuple[F64, F64, F64]:
        """Counts, first and second moments about other means, as in `SoftStatistics`: the way back of `from_pass`."""
        shifts = self.means - means
        return self.counts, self.counts[:, None] * shifts, self.scatter + self.kind.outer(self.counts, shifts)

    def merged(self, first: I64 | list[int], second: I64 | list[int]) -> ObservedMoments:
        """What pairs of components hold together."""
        a, b = self.take(first), self.take(second)
        counts = a.counts + b.counts
        share = np.divide(b.counts, counts, out=np.zeros_like(counts), where=counts > 0)
        apart = b.means - a.means
        scatter = a.scatter + b.scatter + self.kind.outer(a.counts * share, apart)
        return ObservedMoments(counts, a.means + share[:, None] * apart, scatter, self.kind)


def log_total(joint: F64) -> F64:
    """log Σ_c exp of log-densities, (N, C), which are gone after that."""
    top = joint.max(axis=1)
    joint -= np.where(np.isfinite(top), top, 0.0)[:, None]
    with np.errstate(divide="ignore"):
        return np.asarray(top + np.log(np.exp(joint, out=joint).sum(axis=1)))


class Students(NamedTuple):
    """Student-t densities, log p(x) = constant − power · log(1 + scale · q), q the squares of a Gaussian mixture."""

    mixture: ExpectedMixture
    constants: F64
    """(C,)."""
    powers: F64
    """(C,): half of the degrees of freedom and columns."""
    scales: F64
    """(C,)."""

    def log_density(self, squares: F64) -> F64:
        """log Σ_c p(c, x) of rows from their squares, (N, C), which are gone after that."""
        squares *= self.scales
        np.log1p(squares, out=squares)
        squares *= -self.powers
        squares += self.constants
        return log_total(squares)


class Posterior(ABC):
    """q_η of several components (Eq. 13)."""

    prior: Prior

    @abstractmethod
    def __len__(self) -> int: ...

    def join(self, other: Self) -> Self:
        """The components of both."""
        return joined([self, other])

    @abstractmethod
    def expected_mixture(self, log_weights: F64) -> ExpectedMixture:
        """log_weights_i + E[log p(x | η_i)] as a log-density, up to the base measure h(x)."""

    def predictive_mixture(self, weights: F64) -> GaussianParameters | None:
        """Components whose means and covariances are those of the predictive densities; None if there are none."""
        return None

    @abstractmethod
    def divergences(self) -> F64:
        """KL(q_{η_i} ‖ p_η), (C,)."""

    @abstractmethod
    def log_evidences(self) -> F64:
        """log ∫ Π_n p(x_n | η)^q_n p(η) dη of what each component holds, (C,), without base measures."""

    @abstractmethod
    def log_predictive(self, rows: F64) -> F64:
        """log ∫ p(x | η) q_i(η) dη, (N, C)."""

    def students(self) -> Students | None:
        """The same where it is a Student-t density of squares that a Gaussian mixture has."""
        return None

    @property
    @abstractmethod
    def means(self) -> F64:
        """E[x] under each component, (C, D)."""


class Prior(ABC):
    """p_η (Eq. 12), with the observation model that it is conjugate to."""

    @property
    @abstractmethod
    def covariance_type(self) -> str:
        """Family of the Gaussians that stand for the expected log-likelihood."""

    @property
    @abstractmethod
    def metric(self) -> F64:
        """What distances between rows are measured in: a covariance, (D, D), variances, (D,), or one for all, ()."""

    @abstractmethod
    def update(self, moments: ObservedMoments) -> Posterior:
        """Posteriors given sufficient statistics (Eqs. 18 and 21)."""

    @abstractmethod
    def itself(self) -> Posterior:
        """The prior as a posterior of one component: what stands for the tail."""

    def fitted(self, posterior: Posterior) -> Self:
        """The prior of smallest divergence from these posteriors, as far as it may be fitted to them."""
        return self

    def expected_covariance(self) -> F64 | None:
        """The covariance that a component is expected to have, as its family holds it; None if nothing says so."""
        return None

    def weakened(self, share: float) -> Self:
        """The prior with a scale that is this share of what was fitted; the same if none was."""
        return self

    def row_constant(self, total_weight: float, mean: F64, variance: F64) -> float:
        """Σ w of what the log-density of `expected_mixture` has less than Eq. 16 in every component alike.

        `mean` and `variance` are those of the columns.
        """
        return 0.0
