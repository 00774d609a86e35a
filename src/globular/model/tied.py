"""Mixtures whose components share one covariance: E-steps without a quadratic form.

About an offset near the mean of the rows, log π_c N(x; μ_c, Σ) = x·Σ⁻¹μ_c + a_c − ½ xᵀΣ⁻¹x with a constant a_c of the
component. The last term is the same for all components: no responsibility depends on it, and over all rows it adds up
to ½ tr Σ⁻¹T, T the second moment of the rows. The M-step needs Σ_c Σ_n q (x − μ_c)(x − μ_c)ᵀ, which is T less what lies
between the components. So T is taken once, and an iteration costs N·C·D, where other families with matrices take
N·C·D².
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from globular.model.covariances.scatter import CANCELLATION_LIMIT
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """How the rows lie about their mean."""

    offset: F64
    """The mean of the rows, (D,)."""
    scatter: F64
    """T, (1, 1) or (1, D, D)."""
    typical: F64
    """How far out a typical row is, (D,), or (1,) where columns share a variance."""

    @classmethod
    def of(cls, one: GaussianParameters, found: SoftStatistics) -> Spread:
        """From an E-step of one component about the mean of the rows."""
        variances = one.family.scatter.diagonals(found.scatter)[0] / found.total_weight
        return cls(one.means[0], found.scatter, np.sqrt(np.maximum(variances, 0.0)))

    def is_exact_for(self, mixture: GaussianParameters) -> bool:
        """Whether differences of large terms lose no more digits than elsewhere, for rows as far out as any mean."""
        kind = mixture.family.scatter
        reach = np.maximum(np.abs(mixture.means - self.offset).max(axis=0), self.typical)[None]
        precisions = np.abs(kind.stacked(mixture.precisions, mixture.n_features))
        return float(np.vdot(reach, kind.times(precisions, reach))) <= CANCELLATION_LIMIT

    def complete(self, mixture: GaussianParameters, found: SoftStatistics) -> SoftStatistics:
        """What an E-step without quadratic forms lacks: the second moment of all components together, (1, …), and the
        log-likelihood."""
        kind, shifts = mixture.family.scatter, found.shifts
        moved, apart = (kind.outer_sum(found.counts, by) for by in (shifts, mixture.means - self.offset + shifts))
        shared = float((kind.stacked(mixture.precisions, mixture.n_features) * self.scatter).sum())
        return replace(found, scatter=self.scatter - apart + moved, log_likelihood=found.log_likelihood - 0.5 * shared)


def linear_coefficients(mixture: GaussianParameters, offset: F64) -> F64:
    """Σ⁻¹μ_c and a_c of every component, (C, D + 1), for rows and means about the offset."""
    means = mixture.means - offset
    pulls = mixture.family.scatter.times(mixture.each(mixture.precisions), means)
    coefficients = np.empty((len(means), means.shape[1] + 1))
    coefficients[:, :-1] = pulls
    coefficients[:, -1] = mixture.log_constants - 0.5 * np.einsum("cd,cd->c", pulls, means)
    return coefficients
