"""Which rows are few enough to be searched without a pass for every step, and what such a search has to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.model.statistics import F64

MOST_ROWS, MOST_NUMBERS, MOST_DISTANCES = 1 << 15, 1 << 18, 1 << 18
"""Rows, their numbers, and distances of a step, up to which rows are few; beyond, passes over parts of them take less
time."""
MOST_CLUSTERS = 64
"""Swaps of one centre after the other suit few clusters; of more, passes swap several at once."""
SEED_DISTANCES = 1 << 21
"""Distances of all rows from all seeds up to which rows are few to be seeded, whatever the number of clusters: greedy
seeds would take two passes each."""


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


@dataclass(frozen=True, slots=True)
class SeedRows:
    """Rows that are seeds of k-means++, and the Σ w d² that they leave."""

    indices: NDArray[np.intp]
    potential: float


@dataclass(frozen=True, slots=True)
class Found:
    """Centres, an upper bound of their objective, and what it took to find them."""

    centers: F64
    objective: float
    n_steps: int
    n_failures: int = 0
    """Trials that have failed since the last success."""


class Limits(NamedTuple):
    """How far centres go, and when steps and trials end; kernels have no numbers of their own."""

    max_steps: int
    """Of a trial, or of all where nothing is tried; see `ProbingOptions` for the next four."""
    min_gain: float
    total: float
    unexplained: float
    unit: bool
    least_stake: float
    """See `ProbingOptions.at_stake`."""
    decay: float
    """This and the next two: see `algorithms.kmeans.momentum`."""
    reach: float
    lead: float
    least_ratio: float = 0.0
    """Gain of a swap that is tried, as a multiple of its loss."""
    worth: float = 0.0
    """Share of what is at stake that a swap has to gain."""
    max_failures: int = 0
    """Trials that may fail one after the other."""
    max_in_trials: int = 0
    """Steps of all trials."""
