"""Gaussian mixtures given some columns, equation by equation: the oracle of `model.conditional`."""

import numpy as np

from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64
from reference.expect import covariance_matrices


def conditional(mixture: GaussianParameters, known: I64, row: F64) -> tuple[F64, F64, F64]:
    """Weights (C,), means (C, m) and covariance matrices (C, m, m) of the other columns given one row of some."""
    others = np.setdiff1d(np.arange(mixture.n_features), known)
    joint, means, covariances = [], [], []
    for weight, mean, covariance in zip(mixture.weights, mixture.means, covariance_matrices(mixture), strict=True):
        S_oo, S_mo = covariance[np.ix_(known, known)], covariance[np.ix_(others, known)]
        away = row - mean[known]
        quadratic = away @ np.linalg.solve(S_oo, away)
        joint.append(np.log(weight) - 0.5 * (np.linalg.slogdet(2 * np.pi * S_oo)[1] + quadratic))
        means.append(mean[others] + S_mo @ np.linalg.solve(S_oo, away))
        covariances.append(covariance[np.ix_(others, others)] - S_mo @ np.linalg.solve(S_oo, S_mo.T))
    shares = np.exp(np.array(joint) - np.logaddexp.reduce(joint))
    return shares, np.array(means), np.array(covariances)


def moments(shares: F64, means: F64, covariances: F64) -> tuple[F64, F64]:
    """Mean and variances of a mixture, (m,) each."""
    mean = shares @ means
    return mean, shares @ (np.diagonal(covariances, axis1=1, axis2=2) + (means - mean) ** 2)
