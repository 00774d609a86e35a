"""The search for few clusters among few rows, compiled: iterations, swaps that are tried out, and iterations again.

The same idea as `trials`, in the form that suits rows in the cache (`kernels.few_rows`), where a look at all of them
costs less than to ask for it. A row drawn by its error moves to the mean of those that it would win as a centre; since
every row knows its second closest centre, one look says what that gains and what each of the old centres is worth
beside it. The best of some such rows takes the place of the centre that is least missed. It stays if the error falls
below what it was within a few iterations, and the search ends after a few failures, or when it has taken a few times
as many iterations as were needed to come there.

[Fränti 2018; Lattanzi and Sohler 2019]
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from globular.algorithms.kmeans.probing import ProbingOptions
from globular.algorithms.kmeans.trials import ROUGH_GAIN, STEPS_PER_TRIAL, WORTH_KEEPING, TrialOptions
from globular.algorithms.seeding.common import few_rows_of
from globular.algorithms.steps import Step
from globular.model.few_rows import StepLimits, TrialLimits
from globular.model.history import PART
from globular.model.statistics import F64
from globular.seam.shard import Shard

CANDIDATES = 4
"""Rows of which the best is tried."""
LEAST_RATIO = 0.4
"""A swap is tried if its gain is at least this share of its loss."""
FEWER_FAILURES = 4
"""A failure is one of some candidates at once, so there are fewer of them for few clusters."""
STEPS_PER_FAILURE = 0.5
"""Iterations of trials, as a multiple of those before them, for every failure that is allowed."""
PRODUCTS_AT_ONCE = 1 << 27
"""About as many until a step is shown."""


def search_few_rows(
    shard: Shard, centers: F64, options: ProbingOptions, trials: TrialOptions, rng: np.random.Generator
) -> Generator[Step[F64], None, Step[F64]]:
    """Iterations and trials, about `max_iter` of all of them together; returns the last step."""
    rows, C = few_rows_of(shard, unit_centers=options.unit_centers), len(centers)
    limits = StepLimits(options.max_iter, ROUGH_GAIN, options.total, options.unexplained, options.unit_centers)
    found = rows.step(centers, limits._replace(min_gain=max(options.min_gain, ROUGH_GAIN)))

    def step(n_distances: int) -> Step[F64]:
        return Step(0, found.objective, n_distances, None, found.centers, stage=PART, next_rows=shard.n_rows)

    n_first = n_steps = found.n_steps
    yield step(n_steps * shard.n_rows * C)
    limits = limits._replace(min_gain=options.min_gain)
    of_trials = TrialLimits(
        LEAST_RATIO, WORTH_KEEPING, trials.max_failures + trials.more_failures // (FEWER_FAILURES * C), 0
    )
    last_trial = min(options.max_iter, n_first * (1 + STEPS_PER_FAILURE * trials.max_failures))
    n_rounds, at_once = trials.max_trials, max(1, PRODUCTS_AT_ONCE // (shard.n_rows * shard.n_columns * C))
    while C > 1 and n_rounds > 0 and n_steps < last_trial and found.n_failures < of_trials.max_failures:
        draws = rng.random((min(n_rounds, at_once), CANDIDATES))
        found = rows.swap(
            found.centers, draws, limits._replace(max_steps=STEPS_PER_TRIAL),
            of_trials._replace(max_steps=int(last_trial) - n_steps), found.n_failures,
        )  # fmt: skip
        n_rounds, n_steps = n_rounds - len(draws), n_steps + found.n_steps
        yield step(found.n_steps * shard.n_rows * C + draws.size * 2 * shard.n_rows)
    found = rows.step(found.centers, limits._replace(max_steps=max(1, options.max_iter - n_steps)))
    last = step(found.n_steps * shard.n_rows * C)
    yield last
    return last
