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
from globular.algorithms.kmeans.trials import LEAST_RATIO, ROUGH_GAIN, STEPS_PER_TRIAL, WORTH_KEEPING, TrialOptions
from globular.algorithms.steps import Step
from globular.model.few_rows import FewRows, StepLimits, TrialLimits
from globular.model.history import PART
from globular.model.statistics import F64

CANDIDATES = 4
"""Rows of which the best is tried."""
FEWER_FAILURES = 4
"""A failure is one of some candidates at once, so there are fewer of them for few clusters."""
STEPS_PER_FAILURE = 0.5
"""Iterations of trials, as a multiple of those before them, for every failure that is allowed."""
SOME_STEPS = 6
"""As many are added to those before, which are few where groups are separate."""
PRODUCTS_AT_ONCE = 1 << 27
"""About as many until a step is shown."""


def search_few_rows(
    rows: FewRows, centers: F64, options: ProbingOptions, trials: TrialOptions, rng: np.random.Generator
) -> Generator[Step[F64], None, Step[F64]]:
    """Iterations and trials, `max_iter` of all of them together, or a few more; returns the last step."""
    N, C, D = rows.n_rows, *centers.shape
    at_once = max(1, PRODUCTS_AT_ONCE // (N * C * D))
    limits = StepLimits(options.max_iter, options.min_gain, options.total, options.unexplained, options.unit_centers)
    found = rows.step(centers, limits._replace(min_gain=max(options.min_gain, ROUGH_GAIN)))
    n_steps, n_looks = found.n_steps, 0
    in_trials = int(STEPS_PER_FAILURE * trials.max_failures * (n_steps + SOME_STEPS))
    last_trial = min(options.max_iter, n_steps + in_trials)
    max_failures = trials.max_failures + trials.more_failures // (FEWER_FAILURES * C)
    for first in range(0, trials.max_trials, at_once):
        if C == 1 or n_steps >= last_trial or found.n_failures >= max_failures:
            break
        draws = rng.random((min(trials.max_trials - first, at_once), CANDIDATES))
        of_trials = TrialLimits(LEAST_RATIO, WORTH_KEEPING, max_failures, last_trial - n_steps)
        found = rows.swap(found.centers, draws, limits._replace(max_steps=STEPS_PER_TRIAL), of_trials, found.n_failures)
        n_steps, n_looks = n_steps + found.n_steps, n_looks + 2 * draws.size
        if first + at_once < trials.max_trials:
            yield Step(0, found.objective, 0, None, found.centers, stage=PART, next_rows=N)
    if n_steps < options.max_iter:
        found = rows.step(found.centers, limits._replace(max_steps=options.max_iter - n_steps))
        n_steps += found.n_steps
    last = Step(0, found.objective, N * (C * n_steps + n_looks), None, found.centers, stage=PART)
    yield last
    return last
