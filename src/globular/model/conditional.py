"""Some columns of a Gaussian mixture: their own mixture, and that of the other columns where their values are known.

Of a Gaussian, columns o are Gaussian with μ_o and Σ_oo. Given x_o the others, m, are Gaussian too, with the mean
μ_m + B (x_o − μ_o), B = Σ_mo Σ_oo⁻¹, and the covariance Σ_mm − B Σ_om, which does not depend on x_o. Of a mixture the
same holds component by component, and given x_o the weight of a component is its responsibility for x_o. All families
are closed under both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from globular.model.covariances import FAMILIES
from globular.model.dirichlet import InfiniteMixture
from globular.model.gaussian import GaussianParameters
from globular.model.observations import Posterior
from globular.model.statistics import F64, I64
from globular.model.wishart import GaussianPosterior, GaussianPrior
from globular.threads.blas import single_threaded_blas


def marginal(mixture: GaussianParameters, columns: I64) -> GaussianParameters:
    """The mixture of some columns, in their order."""
    covariances = mixture.family.scatter.of_columns(mixture.covariances, columns)
    return GaussianParameters(mixture.weights, mixture.means[:, columns], covariances, mixture.covariance_type)


def marginal_of_infinite(mixture: InfiniteMixture[Posterior], columns: I64) -> InfiniteMixture[Posterior]:
    """The same of posteriors: a block of an inverse-Wishart matrix is one too, with fewer degrees of freedom."""
    whole = mixture.posterior
    assert isinstance(whole, GaussianPosterior)
    prior = whole.prior
    kind, scatter = prior.kind, FAMILIES[prior.covariance_type].scatter
    fewer = kind.least_degrees(len(prior.m)) - kind.least_degrees(len(columns))
    S, S_0 = (scatter.of_columns(each, columns) for each in (whole.S, prior.S))
    prior = GaussianPrior(kind, prior.beta, prior.m[columns], prior.nu - fewer, S_0)
    posterior = kind(whole.beta, whole.m[:, columns], whole.nu - fewer, S, prior)
    return InfiniteMixture(mixture.sticks, posterior, prior.itself())


@dataclass(frozen=True, slots=True, eq=False)
class Conditional:
    """All that is the same for every value of the known columns."""

    known: GaussianParameters
    """The mixture of the known columns."""
    others: GaussianParameters
    """That of the other columns, where nothing is known."""
    slopes: F64 | None
    """B of every component, (C, m, o); None where columns are not correlated."""
    covariances: F64
    """Covariances of the other columns given the known ones, in the shape of the family."""

    @classmethod
    @single_threaded_blas  # on matrices this small threads only wait for each other
    def of(cls, mixture: GaussianParameters, columns: I64) -> Conditional:
        """From the numbers of the known columns; the others stay in the order of the mixture."""
        rest = np.setdiff1d(np.arange(mixture.n_features), columns)
        known, others = marginal(mixture, columns), marginal(mixture, rest)
        if mixture.family.scatter.separable:
            return cls(known, others, None, others.covariances)
        across = mixture.covariances[..., rest[:, None], columns]  # Σ_mo
        whitened = across @ known.factors  # Σ_mo U, U Uᵀ = Σ_oo⁻¹
        covariances = others.covariances - whitened @ np.swapaxes(whitened, -1, -2)
        slopes = whitened @ np.swapaxes(known.factors, -1, -2)
        slopes = np.broadcast_to(slopes, (mixture.n_components, *slopes.shape[-2:]))
        return cls(known, others, slopes, (covariances + np.swapaxes(covariances, -1, -2)) / 2)

    def means(self, rows: F64, component: int) -> F64:
        """Means of the other columns under one component, given rows of the known columns."""
        mean = self.others.means[component]
        if self.slopes is None:
            return np.broadcast_to(mean, (len(rows), len(mean)))
        return mean + (rows - self.known.means[component]) @ self.slopes[component].T

    def mixture(self, row: F64, responsibilities: F64) -> GaussianParameters:
        """The mixture of the other columns given one row of the known ones and what these say of components, (C,)."""
        means = np.concatenate([self.means(row[None], c) for c in range(len(responsibilities))])
        return GaussianParameters(responsibilities, means, self.covariances, self.known.covariance_type)

    @single_threaded_blas
    def expected(self, rows: F64, responsibilities: F64) -> F64:
        """Means of the other columns given rows of the known ones, (n, m)."""
        means = np.zeros((len(rows), self.others.n_features))
        for c, share in enumerate(responsibilities.T):
            means += share[:, None] * self.means(rows, c)
        return means

    @single_threaded_blas
    def variances(self, rows: F64, responsibilities: F64, expected: F64) -> F64:
        """Variances of the other columns about their means, (n, m)."""
        within = self.others.family.variances(self.covariances, *self.others.means.shape)
        variances = np.zeros_like(expected)
        for c, share in enumerate(responsibilities.T):
            variances += share[:, None] * (within[c] + (self.means(rows, c) - expected) ** 2)
        return variances
