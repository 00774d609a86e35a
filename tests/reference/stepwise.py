"""Stepwise EM in plain NumPy: the oracle of `partial_fit` for covariance matrices, about zero and per weight."""

from dataclasses import dataclass

import numpy as np

from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64
from reference import expect as soft


@dataclass(frozen=True, slots=True)
class Raw:
    """Statistics per unit of weight, and the weight of all rows so far."""

    counts: F64
    sums: F64
    squares: F64
    total: float


def statistics(rows: F64, weights: F64, mixture: GaussianParameters) -> Raw:
    """s of a batch: Σ w q, Σ w q x and Σ w q x xᵀ, divided by Σ w."""
    q = soft.posterior(rows, mixture)[0] * weights[:, None] / weights.sum()
    return Raw(q.sum(axis=0), q.T @ rows, np.einsum("nc,nd,ne->cde", q, rows, rows), float(weights.sum()))


def joined(before: Raw, batch: Raw, kappa: float) -> Raw:
    """S ← (1 − η) S + η s."""
    total = before.total + batch.total
    rate = (batch.total / total) ** kappa
    counts, sums, squares = (
        (1 - rate) * getattr(before, name) + rate * getattr(batch, name) for name in ("counts", "sums", "squares")
    )
    return Raw(counts, sums, squares, total)


def m_step(found: Raw) -> GaussianParameters:
    """The mixture of full covariances that these statistics belong to."""
    means = found.sums / found.counts[:, None]
    covariances = found.squares / found.counts[:, None, None] - means[:, :, None] * means[:, None, :]
    return GaussianParameters(found.counts / found.counts.sum(), means, covariances, "full")
