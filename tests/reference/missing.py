"""The E-step of rows with missing entries, row by row and equation by equation: the oracle of `IncompleteRows`."""

import numpy as np

from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics
from reference.conditional import conditional
from reference.expect import covariance_matrices, posterior, scatter_of


def known_part(mixture: GaussianParameters, row: F64) -> tuple[GaussianParameters, F64]:
    """The mixture of the columns that are known of a row, with whole matrices, and their values."""
    o = np.flatnonzero(~np.isnan(row))
    matrices = covariance_matrices(mixture)[:, o[:, None], o]
    return GaussianParameters(mixture.weights, mixture.means[:, o], matrices, "full"), row[o]


def row_posterior(mixture: GaussianParameters, row: F64) -> tuple[F64, float]:
    """p(c | x_o), (C,), and log p(x_o)."""
    if np.isnan(row).all():
        return mixture.weights, 0.0
    part, values = known_part(mixture, row)
    shares, log_density = posterior(values[None], part)
    return shares[0], float(log_density[0])


def completed(mixture: GaussianParameters, row: F64) -> tuple[F64, F64]:
    """E[x | x_o] (C, D) and cov(x | x_o) (C, D, D) of every component."""
    o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
    means, spreads = np.tile(row, (mixture.n_components, 1)), np.zeros_like(covariance_matrices(mixture))
    if len(m) == len(row):
        return mixture.means, covariance_matrices(mixture)
    if len(m):
        _, means[:, m], spreads[:, m[:, None], m] = conditional(mixture, o, row[o])
    return means, spreads


def expect(rows: F64, weights: F64, mixture: GaussianParameters) -> SoftStatistics:
    """Statistics of the E-step."""
    C, D = mixture.means.shape
    counts, sums, matrices, total = np.zeros(C), np.zeros((C, D)), np.zeros((C, D, D)), 0.0
    for row, weight in zip(rows, weights, strict=True):
        shares, log_density = row_posterior(mixture, row)
        means, spreads = completed(mixture, row)
        away = means - mixture.means
        counts += weight * shares
        sums += weight * shares[:, None] * away
        matrices += weight * shares[:, None, None] * (away[:, :, None] * away[:, None, :] + spreads)
        total += weight * log_density
    scatter = scatter_of(matrices, mixture.family.scatter)
    return SoftStatistics(counts, sums, scatter, total, float(weights.sum()), len(rows) * C)


def imputed(row: F64, mixture: GaussianParameters) -> F64:
    """E[x | x_o], (D,)."""
    return row_posterior(mixture, row)[0] @ completed(mixture, row)[0]
