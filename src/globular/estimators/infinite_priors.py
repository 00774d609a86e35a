"""Priors of infinite mixtures from what a user gave, and from the data where nothing was given."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from globular.estimators.arguments import checked_shape, whole_number
from globular.model.counts import CountsPrior
from globular.model.covariances import FAMILIES, CovarianceLimits
from globular.model.dirichlet import StickPrior
from globular.model.wishart import KINDS, GaussianPrior
from globular.seam.shard import Shard

_PARTS = ("mean", "mean_precision", "degrees_of_freedom", "covariance")
_WEIGHTS, _TYPE, _MOST = "weight_concentration_prior", "weight_concentration_prior_type", "n_components"
THEIRS = (*(f"{part}_prior" for part in _PARTS), _WEIGHTS, _TYPE, _MOST)
"""What `BayesianGaussianMixture` calls the parts of a prior, and what else belongs to it there."""
LEAST_SCALE = 1e-6
"""How far the fitted scale of the covariance prior may fall below the variance of the data."""


class GivenPrior(NamedTuple):
    """What a user has said of the components and of their number."""

    parts: dict[str, Any]
    """Of the prior of a component, by our names."""
    alpha: StickPrior
    max_components: int | None


def stick_prior(concentration: Any, discount: float) -> StickPrior:
    """The prior of the sticks from one number or two, or a Gamma prior, and a discount."""
    if isinstance(concentration, str | Mapping):
        if discount:
            raise ValueError(f"discount={discount} needs a number for concentration, not a Gamma prior of it")
        shape, rate = _gamma_prior({} if isinstance(concentration, str) else concentration)
        return StickPrior(1.0, shape / rate, gamma=(shape, rate))
    pair = (1.0, concentration) if isinstance(concentration, Real) else tuple(concentration)
    if len(pair) != 2 or not all(isinstance(value, Real) and 0 < float(value) < np.inf for value in pair):
        raise ValueError(f"concentration={concentration!r} must be a positive number, or two of them")
    if not discount < pair[0]:
        raise ValueError(f"discount={discount} must be less than the first number of concentration, {pair[0]}")
    return StickPrior(float(pair[0]), float(pair[1]), float(discount))


def _gamma_prior(given: Mapping[str, Any]) -> tuple[float, float]:
    """Shape and rate; 1 where they are not given."""
    unknown = sorted(set(given) - {"shape", "rate"})
    values = [given.get(name, 1.0) for name in ("shape", "rate")]
    if unknown or not all(isinstance(value, Real) and 0 < float(value) < np.inf for value in values):
        raise ValueError(f"concentration={dict(given)!r}: a Gamma prior has a positive 'shape' and a positive 'rate'")
    return float(values[0]), float(values[1])


def translated(given: Mapping[str, Any], concentration: Any, discount: float, max_components: int | None) -> GivenPrior:
    """The parts of a prior by our names, and what is given with them by the names of `BayesianGaussianMixture`."""
    unknown = sorted(set(given) - {*_PARTS, *THEIRS})
    if unknown:
        raise ValueError(f"prior has no part {unknown[0]!r}; its parts are {', '.join(map(repr, (*_PARTS, *THEIRS)))}")
    twice = [part for part in _PARTS if part in given and f"{part}_prior" in given]
    if twice:
        raise ValueError(f"prior has both {twice[0]!r} and '{twice[0]}_prior', which are the same")
    if given.get(_TYPE, "dirichlet_process") != "dirichlet_process":
        raise ValueError(f"prior[{_TYPE!r}]={given[_TYPE]!r}: an infinite mixture has 'dirichlet_process' only")
    most = given.get(_MOST)
    if most is not None:
        max_components = whole_number(f"prior[{_MOST!r}]", most)
    # None stands for a default there
    parts = {name.removesuffix("_prior"): value for name, value in given.items() if value is not None}
    if "weight_concentration" in parts:
        concentration = _positive(parts["weight_concentration"], _WEIGHTS)
    alpha = stick_prior(concentration, discount)
    return GivenPrior({name: parts[name] for name in _PARTS if name in parts}, alpha, max_components)


def gaussian_prior(shard: Shard, covariance_type: str, given: Mapping[str, Any]) -> GaussianPrior:
    """The Gaussian–Wishart or normal–gamma prior, by what a user gave of it."""
    column_means, variances = shard.column_moments()
    D = len(column_means)
    kind, family = KINDS[covariance_type], FAMILIES[covariance_type]
    least = kind.least_degrees(D)
    m = checked_shape(given.get("mean", column_means), (D,), "prior['mean']")
    beta = _positive(given.get("mean_precision", 0.01), "mean_precision")
    nu = _positive(given.get("degrees_of_freedom", least + 3), "degrees_of_freedom")
    if nu <= least:
        raise ValueError(f"prior['degrees_of_freedom']={nu} must be greater than n_features - 1 = {least}")
    if "covariance" not in given:
        # a constant column gets a tiny variance of its own
        floor = CovarianceLimits.for_data(0.0, column_means, variances).smallest
        S = nu * np.maximum(variances, floor)
        fits_beta = "mean_precision" not in given
        own = np.where(variances < floor, floor, 0.0) if (variances < floor).any() else None
        return GaussianPrior(kind, beta, m, nu, family.scatter.diagonal(S), LEAST_SCALE * S, fits_beta, own)
    S = checked_shape(given["covariance"], family.scatter.entry(D), "prior['covariance']")
    if not family.is_positive(S):
        raise ValueError(f"prior['covariance'] must be {family.requirement}")
    return GaussianPrior(kind, beta, m, nu, S)


def _positive(value: Any, name: str) -> float:
    if not isinstance(value, Real) or not 0 < float(value) < np.inf:
        raise ValueError(f"prior[{name!r}]={value!r} must be a positive number")
    return float(value)


def counts_prior(shard: Shard, smoothing: Any) -> CountsPrior:
    """The Dirichlet prior of multinomial components."""
    mean, variance = shard.column_moments()
    D = len(mean)
    a = np.full(D, float(smoothing)) if isinstance(smoothing, Real) else checked_shape(smoothing, (D,), "smoothing")
    if not (a > 0).all():
        raise ValueError("smoothing must be positive in every column")
    return CountsPrior.for_data(a, mean, variance)
