"""Priors of infinite mixtures from what a user gave, and from the data where nothing was given."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from globular.backends.protocol import Shard
from globular.model.counts import CountsPrior
from globular.model.covariances import FAMILIES, CovarianceLimits
from globular.model.statistics import F64
from globular.model.wishart import KINDS, GaussianPrior

LEAST_SCALE = 1e-6
"""How far the fitted scale of the covariance prior may fall below the variance of the data."""


def stick_prior(concentration: Any) -> tuple[float, float]:
    """Beta(α₁, α₂) from one number or two."""
    pair = (1.0, concentration) if isinstance(concentration, Real) else tuple(concentration)
    if len(pair) != 2 or not all(isinstance(value, Real) and 0 < float(value) < np.inf for value in pair):
        raise ValueError(f"concentration={concentration!r} must be a positive number, or two of them")
    return float(pair[0]), float(pair[1])


def gaussian_prior(
    shard: Shard,
    covariance_type: str,
    mean: Any,
    mean_precision: float,
    degrees_of_freedom: float | None,
    covariance: Any,
) -> GaussianPrior:
    """The Gaussian–Wishart or normal–gamma prior."""
    column_means, variances = shard.column_moments()
    D = len(column_means)
    m = column_means if mean is None else _checked(mean, (D,), "mean_prior")
    kind, family = KINDS[covariance_type], FAMILIES[covariance_type]
    least = kind.least_degrees(D)
    nu = float(least + 3 if degrees_of_freedom is None else degrees_of_freedom)
    if nu <= least:
        raise ValueError(f"degrees_of_freedom_prior={nu} must be greater than n_features - 1 = {least}")
    if covariance is None:
        # a constant column gets a tiny variance of its own
        floor = CovarianceLimits.for_data(0.0, column_means, variances).smallest
        S = nu * np.maximum(variances, floor)
        return GaussianPrior(kind, mean_precision, m, nu, family.scatter.diagonal(S), LEAST_SCALE * S)
    S = _checked(covariance, family.scatter.entry(D), "covariance_prior")
    if not family.is_positive(S):
        raise ValueError(f"covariance_prior must be {family.requirement}")
    return GaussianPrior(kind, mean_precision, m, nu, S)


def counts_prior(shard: Shard, smoothing: Any) -> CountsPrior:
    """The Dirichlet prior of multinomial components."""
    mean, variance = shard.column_moments()
    D = len(mean)
    a = np.full(D, float(smoothing)) if isinstance(smoothing, Real) else _checked(smoothing, (D,), "smoothing")
    if not (a > 0).all():
        raise ValueError("smoothing must be positive in every column")
    return CountsPrior.for_data(a, mean, variance)


def _checked(values: Any, shape: tuple[int, ...], name: str) -> F64:
    array = np.asarray(values)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
    flat: F64 = check_array(array.reshape(1, -1), dtype=np.float64, input_name=name, copy=True)
    return flat.reshape(shape)
