"""The search for few clusters among few rows, compiled: iterations, swaps that are tried out, and iterations again.

The same idea as `trials`, in the form that suits rows in the cache (`passes.cpu.few_rows`), where a look at all of them
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

from globular.algorithms.kmeans.momentum import DECAY, LEAD, REACH
from globular.algorithms.kmeans.probing import LEAST_STAKE, ProbingOptions
from globular.algorithms.kmeans.trials import LEAST_RATIO, ROUGH_GAIN, STEPS_PER_TRIAL, WORTH_KEEPING, TrialOptions
from globular.algorithms.seeding.common import few_rows_of
from globular.algorithms.steps import Step
from globular.model.history import PART
from globular.model.statistics import F64
from globular.seam.center_passes import Limits, SearchFew
from globular.seam.shard import Shard

CANDIDATES = 4
"""Rows of which the best is tried."""


def search_few_rows(
    shard: Shard, centers: F64, options: ProbingOptions, trials: TrialOptions, rng: np.random.Generator
) -> Generator[Step[F64], None, Step[F64]]:
    """Iterations and trials, `max_iter` of all of them together, or a few more; returns the last step."""
    (N, D), C, rows = (shard.n_rows, shard.n_columns), len(centers), few_rows_of(shard)
    at_once = max(1, (1 << 27) // (N * C * D))  # rounds until a step is shown, about a tenth of a second
    limits = Limits(
        options.max_iter, options.min_gain, options.total, options.unexplained, options.unit_centers, LEAST_STAKE,
        DECAY, REACH, LEAD,
    )  # fmt: skip
    no_draws = np.empty((0, CANDIDATES))
    found = rows.run(SearchFew(centers, limits._replace(min_gain=max(options.min_gain, ROUGH_GAIN)), no_draws))
    n_steps, n_looks = found.n_steps, 0
    # every failure that is allowed is worth half the iterations before, and three more where groups are separate;
    # one is of some candidates at once, so for few clusters there are a quarter of those of `trials`
    last_trial = min(options.max_iter, n_steps + trials.max_failures * (n_steps + 6) // 2)
    max_failures = trials.max_failures + trials.more_failures // (4 * C)
    for first in range(0, trials.max_trials, at_once):
        if C == 1 or n_steps >= last_trial or found.n_failures >= max_failures:
            break
        draws = rng.random((min(trials.max_trials - first, at_once), CANDIDATES))
        short = limits._replace(
            max_steps=STEPS_PER_TRIAL, least_ratio=LEAST_RATIO, worth=WORTH_KEEPING, max_failures=max_failures,
            max_in_trials=last_trial - n_steps,
        )  # fmt: skip
        found = rows.run(SearchFew(found.centers, short, draws, found.n_failures))
        n_steps, n_looks = n_steps + found.n_steps, n_looks + 2 * draws.size
        if first + at_once < trials.max_trials:
            yield Step(0, found.objective, 0, None, found.centers, stage=PART, next_rows=N)
    if n_steps < options.max_iter:
        found = rows.run(SearchFew(found.centers, limits._replace(max_steps=options.max_iter - n_steps), no_draws))
        n_steps += found.n_steps
    last = Step(0, found.objective, N * (C * n_steps + n_looks), None, found.centers, stage=PART)
    yield last
    return last
