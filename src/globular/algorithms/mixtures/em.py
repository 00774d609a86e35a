"""Expectation maximisation for Gaussian mixtures (Dempster, Laird and Rubin 1977), exact.

    repeat:  E-step  q(c | x) = π_c N(x; μ_c, Σ_c) / p(x)             one soft pass, statistics about the old means
             M-step  π_c, μ_c, Σ_c from Σ q, Σ q x, Σ q x xᵀ

The log-likelihood of a step belongs to the parameters its E-step used, and the step's model is what its M-step made of
them: the same bookkeeping as scikit-learn's. Starting points are made here too, all of them by passes over the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from globular.algorithms.kmeans.subspace import SAMPLED_ROWS
from globular.algorithms.seeding.common import evenly_spread_masses
from globular.algorithms.steps import Model, Step
from globular.model.covariances import RELATIVE_FLOOR, CovarianceLimits
from globular.model.gaussian import GaussianParameters, about_the_mean, isotropic_mixture, log_prior, m_step
from globular.model.statistics import F64, SoftStatistics
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign
from globular.seam.shard import Shard

CONVERGED = "the log-likelihood changed by less than tol"
ROUNDED = "the log-likelihood fell by rounding in a covariance that is all but singular"
COLD = 1e-3
"""Share of the variance within clusters or components at which responsibilities are all but hard; smaller = harder."""
STEPS_ON_PART = 50
"""Most steps of EM on a part of the rows, whose mixture is no more than a start; larger = closer to its end there."""
VARIANCE_NUMBERS = 1 << 20
"""Most numbers of the rows that stand for all in an estimate of variances; larger = a closer estimate of wide rows."""


@dataclass(frozen=True, slots=True)
class EMOptions:
    """How to run EM."""

    max_iter: int = 100
    tol: float = 1e-3
    """Stop when the mean log-likelihood of a row changes by less."""
    reg_covar: float | F64 | str = "auto"
    """Added to the variances; see `CovarianceLimits.for_data`."""
    relative_floor: float = RELATIVE_FLOOR
    """No variance falls below this share of the variance of the data."""
    learned_weights: bool = True
    """Whether mixing weights are learned; otherwise they are equal."""
    previous_bound: float = -np.inf
    """Mean log-likelihood of the fit that this one continues."""
    prior: tuple[float, int] | None = None
    """Rows of the prior of a covariance, and the number of components that its scale is for; None is no prior."""
    limits: CovarianceLimits | None = None
    """What `covariance_limits` has found for the data, where it has been asked before."""


def em(shard: Shard, start: GaussianParameters, options: EMOptions) -> Iterator[Step[GaussianParameters]]:
    """Run EM from `start`; one step per iteration, its objective the log-likelihood Σ w log p(x).

    Without `reg_covar` it never falls but by rounding, which covariances of condition 1e12 make felt: EM then ends, and
    the last step has the mixture of before.
    """
    limits = covariance_limits(shard, options)
    yield from em_by(partial(e_step, shard), start, options, limits)


def em_by(
    expect: Callable[[GaussianParameters], SoftStatistics],
    start: GaussianParameters,
    options: EMOptions,
    limits: CovarianceLimits,
) -> Iterator[Step[GaussianParameters]]:
    """EM by an E-step of whatever kind."""
    update = partial(m_step, limits=limits, learned_weights=options.learned_weights)
    never_falls = not np.any(limits.reg_covar)
    return iterate(
        partial(penalised, expect, limits),
        update,
        start,
        options.max_iter,
        options.tol,
        options.previous_bound,
        never_falls=never_falls,
    )


def penalised(
    expect: Callable[..., SoftStatistics], limits: CovarianceLimits, mixture: GaussianParameters, **how: bool
) -> SoftStatistics:
    """An E-step whose log-likelihood has the log density of the prior added."""
    found, more = expect(mixture, **how), log_prior(mixture, limits)
    return replace(found, log_likelihood=found.log_likelihood + more) if more else found


def iterate(
    expect: Callable[[Model], Any],
    update: Callable[[Model, Any], Model],
    start: Model,
    max_iter: int,
    tol: float,
    bound: float,
    *,
    never_falls: bool = False,
) -> Iterator[Step[Model]]:
    """E-steps and M-steps until the mean log-likelihood of a row, `bound` before, changes by less than `tol`.

    If in exact arithmetic it `never_falls`, a fall is one of rounding, and ends it.
    """
    model, best, objective = start, start, -np.inf
    for iteration in range(1, max_iter + 1):
        statistics = expect(model)
        if never_falls and _has_fallen(statistics.log_likelihood, objective, statistics.total_weight):
            yield Step(iteration, objective, statistics.n_distances, None, best, ROUNDED)
            return
        best, objective = model, statistics.log_likelihood
        model = update(model, statistics)
        before, bound = bound, objective / statistics.total_weight
        stopped = ""
        if abs(bound - before) < tol:
            stopped = CONVERGED
        elif iteration == max_iter:
            stopped = "max_iter"
        yield Step(iteration, objective, statistics.n_distances, None, model, stopped)
        if stopped:
            return


def e_step(shard: Shard, mixture: GaussianParameters) -> SoftStatistics:
    """What an M-step needs; of components with one covariance the second moments come together (`Spread`)."""
    if mixture.family.tied and mixture.n_components > 1 and mixture.noise is None:
        spread = shard.spread(mixture.covariance_type)
        if spread.is_exact_for(mixture):
            return spread.complete(mixture, shard.run(Expect(mixture, offset=spread.offset)))
    return shard.run(Expect(mixture))


def _has_fallen(now: float, before: float, total_weight: float) -> bool:
    """Whether a log-likelihood of all rows has fallen by more than sums are rounded by."""
    return before - now > 1e-9 * (total_weight + abs(now))


def covariance_limits(shard: Shard, options: EMOptions) -> CovarianceLimits:
    """What keeps the covariances of mixtures for this data invertible."""
    if options.limits is not None:
        return options.limits
    limits = CovarianceLimits.for_data(options.reg_covar, *shard.column_moments(), options.relative_floor)
    if options.prior is None:
        return limits
    rows, n_components = options.prior
    variances = np.maximum(shard.column_moments()[1], limits.smallest) * n_components ** (-2.0 / shard.n_columns)
    return replace(limits, prior_rows=rows * shard.total_weight / shard.n_rows, prior_variances=variances)


def start_from_means(shard: Shard, means: F64, covariance_type: str, options: EMOptions) -> GaussianParameters:
    """Every row to its closest mean, then an M-step: how a k-means result becomes a mixture.

    The assignment is the E-step of a mixture so cold that it is hard; rows halfway between two means go to both.
    """
    limits, means = covariance_limits(shard, options), np.asarray(means)
    cold = cold_mixture(means, variance_within(shard, means), covariance_type, limits)
    return m_step(cold, e_step(shard, cold), limits, learned_weights=options.learned_weights)


def variance_within(shard: Shard, means: F64) -> float:
    """Variance of a column within the clusters of these means, from a sample of the rows."""
    n = min(shard.n_rows, SAMPLED_ROWS, max(64, VARIANCE_NUMBERS // shard.n_columns))
    masses = evenly_spread_masses(shard.total_weight, n, np.random.default_rng(0))
    sample = shard.local(shard.take(shard.locate(masses)))
    return sample.run(Assign(means, want="labels")).objective / (n * shard.n_columns)


def cold_mixture(means: F64, within: float, covariance_type: str, limits: CovarianceLimits) -> GaussianParameters:
    """Components so narrow beside the variance `within` clusters that responsibilities are all but hard."""
    return isotropic_mixture(means, max(COLD * within, float(limits.smallest.mean())), covariance_type)


def one_gaussian(shard: Shard, covariance_type: str) -> GaussianParameters:
    """One component about the mean of all rows, as wide as an average column."""
    return about_the_mean(*shard.column_moments(), covariance_type)


def start_at_random(
    shard: Shard, n_components: int, covariance_type: str, options: EMOptions, random: np.random.RandomState
) -> GaussianParameters:
    """What random responsibilities lead to: all components near the one Gaussian of all the data.

    Deviation: no N×C table is drawn; averages under uniform random responsibilities scatter about the mean of the data
    with a third of its covariance per row, and that distribution is drawn from directly.
    """
    one = one_gaussian(shard, covariance_type)
    one = m_step(one, shard.run(Expect(one)), covariance_limits(shard, options))
    noise = one.family.spread(one.covariances, 0, random.standard_normal((n_components, shard.n_columns)))
    means = one.means[0] + noise / np.sqrt(3 * shard.n_rows)
    shape = one.family.shape(n_components, shard.n_columns)
    return GaussianParameters(
        np.full(n_components, 1 / n_components), means, np.broadcast_to(one.covariances, shape).copy(), covariance_type
    )
