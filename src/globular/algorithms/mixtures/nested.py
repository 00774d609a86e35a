"""Nested EM: iterations on batches of growing size, each batch holding the one before.

A mixture of P free parameters that is fitted to b rows ends about P/2b nats a row below the best for all rows, however
many its iterations (Akaike 1974): that is what the sample costs. EM that ends when an iteration gains less than tol has
often ten times that to come. So on b rows iterations that gain less than a tenth of P/2b are at rest within the error
of the sample, and more rows are worth more than more iterations:

    for b in …, B/16, B/4, B:
        EM on the first b rows of a random order, until an iteration gains, or all to come will gain, less than
        max(tol, ⅒ · P/2b); what is to come by a geometric series, twice over

where B is so large that the sample costs less than EM itself leaves when it ends by tol, ⅒ · P/2B = tol; or all rows,
where EM ends as ever. Early iterations, which move components far, cost little, and late ones are few. Since batches
are nested nothing is counted twice: the statistics of a row are those of its last E-step.

The E-step is an argument: exact, or truncated to the K(n) that probing finds (`mixtures.probing`), which are found anew
for every batch.

[Newling and Fleuret 2016, for k-means; Neal and Hinton 1998]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.em import CONVERGED, ROUNDED, EMOptions, covariance_limits, e_step, em_by
from globular.algorithms.mixtures.pipeline import rows_of_part
from globular.algorithms.mixtures.probing import NO_GRAPH, SearchByProbing, find_members, start_probing
from globular.algorithms.mixtures.starts import StartOptions, starting_mixture, variational_means
from globular.algorithms.seeding.common import TAKEN_NUMBERS
from globular.algorithms.steps import Finding, Run, Step, mapped, to_come
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.nested import Batch
from globular.model.statistics import SoftStatistics
from globular.seam.among import Need
from globular.seam.shard import Shard

ENOUGH = "more rows would change the log-likelihood by less than EM leaves at this tol"
GROWTH = 4
"""How many times the rows of a batch the next one has."""
AT_REST = 0.1
"""Iterations on a batch end when one gains less than this share of what the batch costs."""

TIMES_THE_PART = 2
"""How many times the rows of the part that a start was found on the first batch has."""

EStep: TypeAlias = Callable[[GaussianParameters], SoftStatistics]


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Which rows batches have."""

    first: int
    """Rows of the first one."""
    run: int = 1
    """How many neighbouring rows stay together: more than one where every place costs a read."""
    n_candidates: int | None = None
    """C′ of truncated E-steps; None takes exact ones."""


def nested_mixture(shard: Shard, options: EMOptions, batches: BatchOptions, how: StartOptions) -> Finding[Run]:
    """Nested EM from its start on."""
    given, C = how.given, how.n_components
    if given.continues:  # batches would lead away from where all rows have led
        batches = replace(batches, first=shard.n_rows)
    if batches.n_candidates is not None and given.complete() is None:
        start = yield from _truncated_start(shard, options, batches, how)
    else:
        one = isotropic_mixture(np.zeros((C, shard.n_columns)), 1.0, given.covariance_type)
        n_parameters = one.n_parameters(learned_weights=options.learned_weights)
        first = batch_sizes(shard.n_rows, batches.first, n_parameters, options.tol)[0]
        start = yield from starting_mixture(shard, options, how, rough=not is_whole(first, shard.n_rows))
    return Run(nested_em(shard, start, options, batches, how.rng()), start)


def rows_of_first_batch(shard: Shard, n_components: int, covariance_type: str) -> int:
    """Enough rows to tell more than the part has told that the search was on."""
    return min(shard.n_rows, TIMES_THE_PART * rows_of_part(shard, n_components, covariance_type))


def nested_em(
    shard: Shard, start: GaussianParameters, options: EMOptions, batches: BatchOptions, rng: np.random.Generator
) -> Iterator[Step[GaussianParameters]]:
    """EM on batches of growing size; objectives are what each batch says of the log-likelihood of all rows.

    A single batch that holds all rows is EM.
    """
    limits, N = covariance_limits(shard, options), shard.n_rows
    n_parameters = start.n_parameters(learned_weights=options.learned_weights)
    seed, mixture, n_before = int(rng.integers(2**31)), start, 0
    sizes = batch_sizes(N, batches.first, n_parameters, options.tol)
    for size in sizes if options.max_iter > 0 else ():
        part = _rows_of(shard, Batch(seed, size, N, batches.run))
        whole, share = part is shard, shard.total_weight / part.total_weight
        tol = options.tol if whole else max(options.tol, resting(n_parameters, part.n_rows))
        own = replace(options, max_iter=options.max_iter - n_before, tol=tol)
        rises = Rises()
        for step in em_by(_expects(part, mixture, batches, rng), mixture, own, limits):
            stopped, iteration = step.stopped, n_before + step.iteration
            at_rest = not whole and (stopped in (CONVERGED, ROUNDED) or rises.after(step.objective, part) < tol)
            if at_rest:
                last = "max_iter" if iteration == options.max_iter else ""
                stopped = ENOUGH if size == sizes[-1] else last
            rows = None if whole else part.n_rows
            yield replace(step, iteration=iteration, objective=step.objective * share, stopped=stopped, next_rows=rows)
            if at_rest:
                break
        if stopped:
            return
        mixture, n_before = step.model, iteration


def resting(n_parameters: int, n_rows: int) -> float:
    """What an iteration on `n_rows` rows has to gain to be worth more than further rows."""
    return AT_REST * 0.5 * n_parameters / n_rows


class Rises:
    """How much the mean log-likelihood of a row is about to rise, by the last two rises."""

    def __init__(self) -> None:
        self._bound, self._rise = -np.inf, np.inf

    def after(self, log_likelihood: float, part: Shard) -> float:
        """All that is to come if rises go on to shrink as they did, twice over; infinity where they do not shrink."""
        bound = log_likelihood / part.total_weight
        rise, steeper = bound - self._bound, self._rise
        self._bound, self._rise = bound, rise
        if not 0.0 <= rise < steeper < np.inf:
            return np.inf
        return to_come(steeper, rise)


def batch_sizes(n_rows: int, first: int, n_parameters: int, tol: float) -> list[int]:
    """Rows of all batches, ascending: the last is enough for `tol`, and the first has at least `first` of them."""
    enough = resting(n_parameters, 1) / tol if tol > 0 else np.inf
    sizes = [int(min(n_rows, max(first, np.ceil(enough))))]
    while sizes[0] >= GROWTH * first:
        sizes.insert(0, sizes[0] // GROWTH)
    return sizes


def is_whole(size: int, n_rows: int) -> bool:
    """Whether a batch of this size is a large enough share of all rows to have all of them."""
    return 2 * size > n_rows


def _rows_of(shard: Shard, batch: Batch) -> Shard:
    """The rows of a batch; all rows where they are most, or more than may be taken from where they lie."""
    elsewhere = {Need.STAY, Need.ONE_PLACE} & shard.lacks.keys()
    if is_whole(batch.size, batch.n_rows) or (elsewhere and batch.size * shard.n_columns > TAKEN_NUMBERS):
        return shard
    part = shard.subset(batch.rows(shard.n_rows))
    return part if part.total_weight > 0 else shard


def _expects(part: Shard, mixture: GaussianParameters, batches: BatchOptions, rng: np.random.Generator) -> EStep:
    """The E-step on a part of the rows."""
    if batches.n_candidates is None:
        return partial(e_step, part)
    find_members(part, mixture, batches.n_candidates, rng)
    search = SearchByProbing(part, NO_GRAPH, VariationalOptions(C_prime=batches.n_candidates), rng)
    return partial(search.e_step, idle=False)


def _truncated_start(
    shard: Shard, options: EMOptions, batches: BatchOptions, how: StartOptions
) -> Finding[GaussianParameters]:
    """Probing k-means on rows of the first batch, and one variance; what is given stays."""
    given, rng, part = how.given, how.rng(), shard
    if not is_whole(batches.first, shard.n_rows):
        batch = Batch(int(rng.integers(2**31)), batches.first, shard.n_rows, batches.run)
        part = shard.subset(batch.rows(shard.n_rows))
    share = shard.total_weight / part.total_weight
    settings = VariationalOptions(C_prime=batches.n_candidates or 1)
    steps = variational_means(part, how, settings, rng, probes=True)
    means = yield from mapped(steps, lambda step: replace(step, objective=share * step.objective))
    mixture = given.replace(isotropic_mixture(means.centers, 1.0, given.covariance_type))
    kept = given.covariances is not None
    limits = covariance_limits(shard, options)
    return start_probing(
        part, mixture, settings, rng, limits=limits, labelled=means.labelled, keep_covariances=kept
    ).mixture
