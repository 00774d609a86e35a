"""Rows of counts: multinomial components with Dirichlet priors.

    p(x | θ) = h(x) Π_d θ_d^{x_d},   θ ~ Dir(a),   E[log p(x | θ)] = xᵀ E[log θ] + log h(x)

The sufficient statistic is x itself, so the expected log-likelihood is linear in x and comes as Gaussians of one common
variance (see `observations`). The free energy leaves out log h(x), the multinomial coefficient, as Eq. 16 does; the
predictive density has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import digamma, gammaln

from globular.model.observations import ExpectedMixture, ObservedMoments, Posterior, Prior
from globular.model.statistics import F64


@dataclass(frozen=True, eq=False)
class CountsPosterior(Posterior):
    """Dirichlet posteriors of C components, with the prior they came from."""

    a: F64
    """(C, D)."""
    prior: CountsPrior

    def __len__(self) -> int:
        return len(self.a)

    @property
    def means(self) -> F64:
        """E[θ], (C, D): the share of every column."""
        return self.a / self.a.sum(axis=1, keepdims=True)

    @property
    def _log_shares(self) -> F64:
        return digamma(self.a) - digamma(self.a.sum(axis=1, keepdims=True))

    def expected_mixture(self, log_weights: F64) -> ExpectedMixture:
        """Eq. 16: with mean σ² E[log θ] the Gaussian has xᵀ E[log θ], and a constant that its weight takes back."""
        means = self.prior.variance * self._log_shares
        remoteness = 0.5 / self.prior.variance * (means**2).sum(axis=1)
        return ExpectedMixture.build(
            log_weights + remoteness, means, np.asarray(self.prior.variance), self.prior.covariance_type
        )

    def divergences(self) -> F64:
        a = self.prior.a
        normalisers = gammaln(self.a.sum(axis=1)) - gammaln(self.a).sum(axis=1) - gammaln(a.sum()) + gammaln(a).sum()
        return normalisers + ((self.a - a) * self._log_shares).sum(axis=1)

    def log_evidences(self) -> F64:
        a = self.prior.a
        return gammaln(a.sum()) - gammaln(a).sum() - gammaln(self.a.sum(axis=1)) + gammaln(self.a).sum(axis=1)

    def log_predictive(self, rows: Any) -> F64:
        """Dirichlet–multinomial, of dense or of sparse rows."""
        if not isinstance(rows, np.ndarray):
            return self._log_predictive_sparse(rows)
        totals = rows.sum(axis=1)
        found = np.empty((len(rows), len(self)))
        coefficients = gammaln(totals + 1) - gammaln(rows + 1).sum(axis=1)
        for c, a in enumerate(self.a):
            of_columns = (gammaln(a + rows) - gammaln(a)).sum(axis=1)
            found[:, c] = coefficients + of_columns + gammaln(a.sum()) - gammaln(a.sum() + totals)
        return found

    def _log_predictive_sparse(self, rows: Any) -> F64:
        (n, _), x, columns = rows.shape, rows.data.astype(np.float64), rows.indices
        row_of, totals = np.repeat(np.arange(n), np.diff(rows.indptr)), rows.sum(axis=1, dtype=np.float64)
        coefficients = gammaln(totals + 1) - np.bincount(row_of, gammaln(x + 1), n)
        found = np.empty((n, len(self)))
        for c, a in enumerate(self.a):
            of_columns = np.bincount(row_of, gammaln(a[columns] + x) - gammaln(a)[columns], n)
            found[:, c] = coefficients + of_columns + gammaln(a.sum()) - gammaln(a.sum() + totals)
        return found


@dataclass(frozen=True, eq=False)
class CountsPrior(Prior):
    """Dir(a)."""

    a: F64
    """(D,); positive."""
    variance: float
    """σ² of the Gaussians that stand for the linear log-likelihood. It changes nothing but rounding."""

    @classmethod
    def for_data(cls, a: F64, mean: F64, variance: F64) -> CountsPrior:
        """σ² such that ‖x‖²/σ² and σ² ‖E log θ‖² are of one size, which rounds least."""
        length = np.sqrt(float(np.mean(mean**2 + variance)))
        typical = float(np.abs(digamma(a) - digamma(a.sum())).mean())
        return cls(a, length / typical if length > 0 and typical > 0 else 1.0)

    @property
    def covariance_type(self) -> str:
        return "tied_spherical"

    @property
    def metric(self) -> F64:
        return np.ones(())

    def itself(self) -> CountsPosterior:
        return CountsPosterior(self.a[None, :], self)

    def update(self, moments: ObservedMoments) -> CountsPosterior:
        return CountsPosterior(self.a + np.maximum(moments.counts[:, None] * moments.means, 0.0), self)

    def row_constant(self, total_weight: float, mean: F64, variance: F64) -> float:
        squared = float((mean**2 + variance).sum())
        log_volume = len(self.a) * np.log(2 * np.pi * self.variance)
        return 0.5 * total_weight * (squared / self.variance + log_volume)
