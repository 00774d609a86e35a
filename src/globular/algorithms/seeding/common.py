"""What several seeding methods share."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.steps import Step
from globular.model.history import SEEDS
from globular.model.statistics import F64
from globular.seam.center_passes import SearchFew
from globular.seam.passes import Index
from globular.seam.shard import Shard

TAKEN_NUMBERS = 1 << 26
"""Rows times columns taken to the algorithm's side at once, in float64: 512 MiB."""

Seeds = Generator[Step[F64], None, F64]
"""What a seeding does: it shows the seeds that it has so far, and returns all of them."""

MOST_ROWS, MOST_NUMBERS, MOST_DISTANCES = 1 << 15, 1 << 18, 1 << 18
"""Rows, their numbers, and distances of a step, up to which rows are few; beyond, passes over parts of them take less
time."""
MOST_CLUSTERS = 64
"""Swaps of one centre after the other suit few clusters; of more, passes swap several at once."""
SEED_DISTANCES = 1 << 21
"""Distances of all rows from all seeds up to which rows are few to be seeded, whatever the number of clusters: greedy
seeds would take two passes each."""


def seeds_so_far(seeds: F64, objective: float) -> Step[F64]:
    """A step of a seeding; its objective is what these seeds leave, or more."""
    return Step(0, objective, 0, None, seeds, stage=SEEDS)


def one_center(shard: Shard, *, unit: bool) -> Step[F64]:
    """The mean of all rows, before any seed is drawn: who has little time ends there."""
    mean, variance = shard.column_moments()
    error, length = float(variance.sum()), float(np.sqrt(mean @ mean))
    if unit:
        error, mean = error + (1.0 - length) ** 2, mean / length if length > 0 else mean
    return seeds_so_far(mean[None], shard.total_weight * error)


def first_seed(shard: Shard, rng: np.random.Generator) -> F64:
    """One row drawn by weight, (1, D)."""
    return shard.take(shard.locate(np.array([rng.random() * shard.total_weight]), "weights"))


def greedy_trials(n_clusters: int) -> int:
    """Draws for a greedily chosen seed, as in scikit-learn."""
    return 2 + int(np.log(n_clusters))


def copied(shard: Shard) -> Shard:
    """All rows of a shard, beside the algorithm."""
    everyone = np.arange(shard.n_rows)
    return shard.local(shard.take(everyone), shard.take(everyone, "weights"))


def most_few_rows(n_columns: int, n_clusters: int) -> int:
    """The most rows that are few for this number of clusters; 0 where the clusters are many."""
    if n_clusters > MOST_CLUSTERS:
        return 0
    return min(MOST_ROWS, MOST_NUMBERS // n_columns, MOST_DISTANCES // n_clusters)


def are_few(n_rows: int, n_columns: int, n_clusters: int) -> bool:
    """True if the problem is small enough for the compiled single-thread search."""
    return n_rows <= most_few_rows(n_columns, n_clusters)


def are_few_to_seed(n_rows: int, n_columns: int, n_clusters: int) -> bool:
    """True if greedy seeds are drawn without passes, also for more clusters than are searched."""
    return n_rows <= min(MOST_ROWS, MOST_NUMBERS // n_columns, SEED_DISTANCES // n_clusters)


def few_rows_of(shard: Shard) -> Shard:
    """All rows of a shard, beside the algorithm unless they lie there."""
    return copied(shard) if shard.why_not(SearchFew) else shard


def evenly_spread_masses(total: float, n: int, rng: np.random.Generator) -> F64:
    """n masses, one anywhere in each of n equal stretches: row i is hit n·mass_i/total times on average, ±1.

    Masses at equal distances would miss whole groups of rows that come in turn.
    """
    return (np.arange(n, dtype=np.float64) + rng.random(n)) * (total / max(n, 1))


def evenly_spread_rows(n_rows: int, n: int, rng: np.random.Generator) -> Index:
    """Numbers of up to n rows, ascending: one anywhere in each of n equal stretches, or all where these are few."""
    if n >= n_rows:
        return np.arange(n_rows)
    drawn = evenly_spread_masses(n_rows, n, rng).astype(np.intp)
    return distinct(np.minimum(drawn, n_rows - 1))  # a mass may be rounded up to the end


class DrawnRows(NamedTuple):
    """Rows, each of them once."""

    indices: Index
    weights: F64
    """What each of them stands for."""
    counts: NDArray[np.intp]
    """How often each was drawn."""

    def of(self, shard: Shard) -> Shard:
        """The rows, beside the algorithm; the shard is what they were drawn from."""
        return shard.local(shard.take(self.indices), self.weights)


def sample_by_weight_and_error(shard: Shard, n: int, potential: float, rng: np.random.Generator) -> DrawnRows:
    """Rows and what each of them stands for: half of n draws by weight, half by the w·d² that the last pass has left.

    `potential` is the sum of those. Remote groups of few rows are not missed, and no row stands for more than twice
    what it would in a plain sample. Rows are ascending; fewer than n where some are drawn twice.
    """
    total = shard.total_weight
    by_weight = shard.locate(evenly_spread_masses(total, n - n // 2, rng), "weights")
    by_error = shard.locate(evenly_spread_masses(potential, n // 2, rng), "errors") if potential > 0 else by_weight[:0]
    indices, counts = np.unique(np.concatenate([by_weight, by_error]), return_counts=True)
    # chance of one draw to hit a row, divided by the row's weight
    chance = np.full(len(indices), (n - n // 2) / n / total)
    if potential > 0:
        chance += n // 2 / n * take_squared_distances(shard, indices) / potential
    return DrawnRows(indices, counts / (n * chance), counts)


def distinct(ascending: Index) -> Index:
    """Each of some ascending numbers once."""
    return ascending[np.concatenate([np.flatnonzero(np.diff(ascending)), [len(ascending) - 1]])]


def take_squared_distances(shard: Shard, indices: Index) -> F64:
    """d² of rows of positive weight, as left by the last pass."""
    return shard.take(indices, "errors") / shard.take(indices, "weights")


def effective_dimension(variances: F64) -> float:
    """(Σ v)² / Σ v² of columns' variances: how many of them count, from 1 to D; 1 where nothing varies."""
    largest = float(variances.max())
    if not largest > 0:
        return 1.0
    shares = variances / 2.0 ** (np.frexp(largest)[1] - 1)  # by a power of two: squares of any size are as exact
    return float(shares.sum()) ** 2 / float(shares @ shares)


def repeat_rows(rows: F64, n: int) -> F64:
    """The rows, repeated in order until there are n: for data with fewer distinct rows than clusters."""
    return rows if len(rows) == n else rows[np.arange(n) % len(rows)]
