"""Where EM over all rows begins, from nothing: k-means and a search for the right components, on a part of the rows.

An iteration of EM over all rows is dear, and what the start lacks it cannot make up for. A part of the rows that has a
hundred or more of them for each component shows where components belong, so on it come

1. k-means, of few components with a search on few of those rows              `kmeans.few_rows`, `kmeans.lloyd`
   or the best of some short runs of EM, of which k-means begins one          `best_of_short_runs`
2. EM, and moves of components that EM cannot make                            `moves`
3. EM to its end

and EM over all rows has a few steps left. Where a part would be most of the rows all of them are searched, for fewer
steps, and EM over all rows follows at once. EM that takes more rows as it goes (`nested`) needs a *rough* start only:
few moves, and no EM to the end, as its first batch has more rows than the part.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from globular.algorithms.kmeans.coreset import draw_rows
from globular.algorithms.kmeans.few_rows import search_few_rows
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.algorithms.kmeans.probing import ProbingOptions
from globular.algorithms.kmeans.trials import TrialOptions
from globular.algorithms.mixtures.em import (
    EMOptions,
    cold_mixture,
    covariance_limits,
    em,
    start_from_means,
    variance_within,
)
from globular.algorithms.mixtures.moves import ROUGH_TOL, search_by_moves
from globular.algorithms.search import SHORTEST
from globular.algorithms.seeding.common import TAKEN_NUMBERS, Seeds, copied, evenly_spread_masses, most_few_rows
from globular.algorithms.seeding.named import automatic, draw_seeds
from globular.algorithms.steps import Finding, on_part
from globular.model.chunks import Chunks
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters, m_step
from globular.model.history import KMEANS
from globular.model.statistics import F64, WithinStatistics
from globular.seam.mixture_passes import ExpectShares
from globular.seam.shard import Shard

logger = logging.getLogger("globular")

FEWEST_ROWS, ROWS_PER_COMPONENT, ROWS_PER_PARAMETER = 2048, 128, 1.5
"""Rows of the part: in all, for every component, and for every parameter of it."""
TIMES_MORE_ROWS = 2
"""How many times the rows of the part there have to be for it to save time."""
KMEANS_STEPS, KMEANS_TOLERANCE = 6, 1e-2
"""Most steps of k-means, and the shift of the centres, relative to the variance of the columns, that ends them."""
FEW_ROWS_PER_COMPONENT, FEW_NUMBERS = 32, 1 << 17
"""Rows for every component with which few of them suffice for a search of k-means (`kmeans.few_rows`), and the most
numbers in all of these rows."""
FAILURES = (4, 12)
"""Least and most swaps of k-means that may fail one after the other, one more for every two components; larger = better
starts, for more time."""
MOST_TRIALS = 200
"""Most swaps of k-means that are tried in all."""
SEARCH = ProbingOptions(n_probes=0, max_iter=200, min_gain=1e-3)
"""Steps of that search."""
STEPS_OVER_ALL_ROWS = 30
"""Steps over all rows that cost as much as the search on the part; larger = a longer search."""
STEPS_PER_STEP, COMPONENTS_PER_STEP = 1.25, 5
"""Longest search, in steps of the EM before it over all rows: 1.25 for each step, or one for five components if that is
more; larger = a longer search. Where EM takes few steps k-means has found everything."""
SETTLED_COMPONENTS, FEW_COMPONENTS = 2, 5
"""Numbers of components up to which there is nothing to move; and up to which short runs of EM compete, and moves take
steps however few the EM before them took."""
SHORT_RUNS, SHORT_STEPS, SHORT_ROWS = 5, 10, 1024
"""Short runs of EM, their steps, and the rows that they see; larger = a higher likelihood, for more time (tuned on 13
sets of 3,000 to 10,000 rows)."""
SHORT_SHARE = 8
"""Rows of a fit for each row of its short runs at least; larger = less time, and no short runs in more small fits."""
STEPS_OF_MOVES, STEPS_PER_COMPONENT = 8, 4
"""Most steps in moves, and more of them for every component."""
ROUGH_STEPS = 96
"""Most steps in moves of a rough start: later ones gain less than iterations on more rows."""
WORK_OF_A_STEP = 5e5
"""What a step costs beside its densities, in numbers that go into them."""


def search_start(
    shard: Shard,
    n_components: int,
    covariance_type: str,
    options: EMOptions,
    rng: np.random.Generator,
    *,
    rough: bool = False,
) -> Finding[GaussianParameters]:
    """A mixture to begin EM over all rows with; steps hold the centres or, later, the mixture found so far.

    A `rough` start is one for EM on parts of the rows first.
    """
    options = replace(options, prior=None)
    options = replace(options, limits=covariance_limits(shard, options))
    if n_components == 1:
        return start_from_means(shard, shard.column_moments()[0][None], covariance_type, options)
    part = draw_part(shard, n_components, covariance_type, rng)
    max_steps = _affordable(shard, part, n_components, covariance_type)
    whole, variance = part.n_rows == shard.n_rows, float(shard.column_moments()[1].mean())
    max_steps = min(max_steps, STEPS_OF_MOVES + STEPS_PER_COMPONENT * n_components)
    max_steps = min(max_steps, ROUGH_STEPS) if rough else max_steps
    if n_components <= SETTLED_COMPONENTS:
        max_steps = 0
    centers = yield from _kmeans(part, n_components, variance, rng)
    if options.max_iter == 0 or (whole and max_steps < SHORTEST):
        return start_from_means(shard, centers, covariance_type, options)
    few = n_components <= FEW_COMPONENTS
    if few and not FAMILIES[covariance_type].tied and shard.n_rows >= SHORT_SHARE * SHORT_ROWS:
        begin = yield from best_of_short_runs(part, centers, covariance_type, options, rng)
    else:
        begin = start_from_means(part, centers, covariance_type, options)
    before = replace(options, tol=max(options.tol, ROUGH_TOL))
    start = yield from on_part(em(part, begin, before), part.n_rows)
    logger.info("searches on %d of %d rows", part.n_rows, shard.n_rows)
    found, per_step = start, max(STEPS_PER_STEP, n_components / COMPONENTS_PER_STEP)
    if not few:
        max_steps = min(max_steps, int(per_step * start.iteration * shard.n_rows / part.n_rows))
    if max_steps >= SHORTEST:
        continued = replace(options, previous_bound=start.objective / part.total_weight)
        found = yield from on_part(search_by_moves(part, start.model, continued, max_steps, rng), part.n_rows)
    if whole or rough:
        return found.model
    return (yield from on_part(em(part, found.model, options), part.n_rows)).model


def _kmeans(part: Shard, n_components: int, variance: float, rng: np.random.Generator) -> Seeds:
    """Means of a search on few rows; of many components seeds and some steps, while these move the means by much."""
    few = min(part.n_rows, most_few_rows(part.n_columns, n_components), FEW_NUMBERS // part.n_columns)
    if few >= min(part.n_rows, FEW_ROWS_PER_COMPONENT * n_components):
        return (yield from _search_few(part, few, n_components, rng))
    seeds = yield from draw_seeds(part, automatic(n_components, part.n_rows), n_components, rng)
    for step in lloyd(part, seeds.centers, KMeansOptions(KMEANS_STEPS, KMEANS_TOLERANCE * variance)):
        yield replace(step, iteration=0, stopped="", stage=KMEANS, next_rows=part.n_rows)
    return step.model


def _search_few(part: Shard, n: int, n_components: int, rng: np.random.Generator) -> Seeds:
    """Means of k-means on n rows of the part; those far off are among them."""
    if n < part.n_rows:
        part = draw_rows(part, n, rng).of(part)
    seeds = yield from draw_seeds(part, "k-means++", n_components, rng)
    trials = TrialOptions(min(FAILURES[1], FAILURES[0] + n_components // 2), 0, MOST_TRIALS)
    for step in search_few_rows(part, seeds.centers, SEARCH, trials, rng):
        yield replace(step, stage=KMEANS, next_rows=part.n_rows)
    return step.model


def best_of_short_runs(
    part: Shard, centers: F64, covariance_type: str, options: EMOptions, rng: np.random.Generator
) -> Finding[GaussianParameters]:
    """The mixture of largest likelihood after short runs of EM, from `centers` and from seeds, all in the same passes.

    The runs lie one behind the other, as if they were one mixture. [Biernacki, Celeux and Govaert 2003]
    """
    few, C, means = _drawn(part, SHORT_ROWS, rng), len(centers), [centers]
    limits, everyone = covariance_limits(part, options), np.arange(few.n_rows)
    for _ in range(SHORT_RUNS - 1):
        means.append((yield from draw_seeds(few, "k-means++", C, rng)).centers)
    runs = cold_mixture(np.concatenate(means), variance_within(few, centers), covariance_type, limits)
    x, weights = few.take(everyone).astype(np.float64, copy=False), few.take(everyone, "weights")
    rows = Chunks.of_rows(x, weights, runs.family.scatter)
    starts, bounds, seen = np.array([0, few.n_rows]), C * np.arange(SHORT_RUNS + 1), np.zeros((SHORT_RUNS, 1), np.int64)

    def expect(runs: GaussianParameters) -> WithinStatistics:
        return few.run(ExpectShares(rows, starts, runs, bounds, seen))

    for _ in range(SHORT_STEPS):
        runs = m_step(runs, expect(runs).parts, limits, learned_weights=options.learned_weights)
    best = int(np.argmax(expect(runs).log_likelihoods))
    found = runs.pick(slice(best * C, (best + 1) * C))
    return replace(found, weights=found.weights / found.weights.sum())


def _affordable(shard: Shard, part: Shard, n_components: int, covariance_type: str) -> int:
    """Steps on the part that cost as much as a few over all rows."""
    D = shard.n_columns
    work = n_components * (D + FAMILIES[covariance_type].scatter.width(D))  # of a row
    share = work * shard.n_rows / (work * part.n_rows + WORK_OF_A_STEP)
    return int(STEPS_OVER_ALL_ROWS * share)


def rows_of_part(shard: Shard, n_components: int, covariance_type: str) -> int:
    """Rows enough to show where `n_components` components belong."""
    D = shard.n_columns
    parameters = D + FAMILIES[covariance_type].n_parameters(n_components, D) / n_components
    return max(FEWEST_ROWS, int(n_components * max(ROWS_PER_COMPONENT, ROWS_PER_PARAMETER * parameters)))


def draw_part(shard: Shard, n_components: int, covariance_type: str, rng: np.random.Generator) -> Shard:
    """Rows enough for the components, beside the algorithm; all rows where that would be most of them."""
    n, D = rows_of_part(shard, n_components, covariance_type), shard.n_columns
    if max(n, min(shard.n_rows, TIMES_MORE_ROWS * n)) * D > TAKEN_NUMBERS:
        return shard
    if shard.n_rows < TIMES_MORE_ROWS * n:
        return copied(shard)
    if FAMILIES[covariance_type].tied:  # rows far off widen the covariance of all others
        return draw_rows(shard, n, rng).of(shard)
    return _drawn(shard, n, rng)


def _drawn(shard: Shard, n: int, rng: np.random.Generator) -> Shard:
    """n draws of rows by weight, beside the algorithm."""
    masses = evenly_spread_masses(shard.total_weight, n, rng)
    chosen, counts = np.unique(shard.locate(masses), return_counts=True)
    weights: F64 = counts.astype(np.float64) * (shard.total_weight / n)
    return shard.local(shard.take(chosen), weights)
