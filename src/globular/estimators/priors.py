"""`prior` of Gaussian mixtures: a number, or a strength that rows left out choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from globular.algorithms.mixtures.em import EMOptions
from globular.algorithms.mixtures.prior import best_prior
from globular.estimators.parameters import POSITIVE, one_of
from globular.estimators.starts import continues
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.seam.shard import Shard

PRIOR: list[Any] = [POSITIVE, one_of("auto", "thin"), None]
"""What `prior` may be."""
THIN = 2.0
"""Rows of an average component, as a multiple of what its parameters need, below which "thin" chooses a prior as "auto"
does; larger = more fits with one (at 2 it was no worse in any of 28 fits of nine sets that would have warned)."""


def is_told(prior: Any) -> bool:
    """Whether a user has asked for a prior."""
    return prior is not None and prior != "thin"


def forget_prior(model: Any) -> None:
    """Let a fit choose its prior anew, unless it goes on from the last one."""
    if not continues(model, "means_"):
        vars(model).pop("prior_", None)


def with_prior(
    model: Any, shard: Shard, options: EMOptions, mixture: Callable[[], GaussianParameters], n_candidates: int | None
) -> EMOptions:
    """The options with the prior that the estimator asks for; `mixture` finds the one that it is chosen for."""
    C, family = model.n_components, FAMILIES[model.covariance_type]
    if "prior_" not in vars(model):  # the same in all runs
        model.prior_ = None if isinstance(model.prior, str) else model.prior
        thin = shard.n_rows < THIN * C * family.least_rows(shard.n_columns)
        if model.prior == "auto" or (model.prior == "thin" and thin):
            model.prior_ = best_prior(shard, mixture(), options, n_candidates)
    return options if model.prior_ is None else replace(options, prior=(float(model.prior_), C))
