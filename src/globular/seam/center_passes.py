"""Passes over rows that are few and in memory: centres, seeds, and data of few rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.model.cells import CenterCells
from globular.model.statistics import F64, PairStatistics
from globular.seam.among import Need
from globular.seam.passes import HERE, Effect, Index, Labels, Pass, SeedRows


@dataclass(frozen=True, eq=False)
class CellSeeds(Pass[Index]):
    """Draw quotas[g] rows by k-means++ inside each cell g, the rows starts[g] … starts[g + 1] − 1.

    `uniforms` holds one number in [0, 1) for each row to draw. The result are Σ quotas row numbers in the order of the
    cells; −1 where a cell had no further distinct row of positive weight.
    """

    needs = HERE | Need.DENSE
    starts: Index
    quotas: Index
    uniforms: F64


@dataclass(frozen=True, eq=False)
class CellNeighbors(Pass[Labels]):
    """For each row the n closest rows (itself first) among its own cell and the adjacent ones.

    `adjacent` (n_cells, A) names cells, the own one among them. Cells that together hold too few rows count as
    adjacent to all.
    """

    needs = HERE
    starts: Index
    adjacent: Index
    n_neighbors: int


@dataclass(frozen=True, eq=False)
class EstimateNeighbors(Pass[Labels]):
    """For each row, a cluster, the clusters of smallest mean distance to its rows (Eq. 8), itself first, (C, G).

    Where there is no estimate neighbours in the old graph, (C, G), stay.
    """

    needs = HERE
    graph: Labels
    pairs: PairStatistics


@dataclass(frozen=True, eq=False)
class AcceptSeeds(Pass[NDArray[np.bool_]]):
    """Which rows, proposals of D² sampling, stay by rejection, each given those before it; the first one always does.

    `before` are their squared distances to the seeds that they were drawn with, `tests` numbers in [0, 1). O(n² D).
    """

    needs = HERE
    before: F64
    tests: F64


@dataclass(frozen=True, eq=False)
class RunChains(Pass[Index]):
    """Where Metropolis chains end that go over their proposals, the rows, one after the other, π/q = d²/q.

    There are as many chains as rows of `tests`, and each lowers d² for those behind it. The first chain that ends on a
    seed is the last one. The state stays.
    """

    needs = HERE
    effect = Effect(reads={"d2"})
    q: F64
    tests: F64


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
    """Most steps of a trial, or of all where nothing is tried; see `ProbingOptions` for the next four."""
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


@dataclass(frozen=True, eq=False)
class SeedFew(Pass[SeedRows]):
    """k-means++ on few rows: each seed is the best of several draws; fewer seeds where there are fewer distinct rows.

    `draws` holds numbers in [0, 1), (C, trials for each seed).
    """

    needs = HERE
    draws: F64
    unit_centers: bool = False


@dataclass(frozen=True, eq=False)
class SearchFew(Pass[Found]):
    """K-means on few rows: a round of swaps for every line of `draws`, or steps alone where there is none.

    `n_failures` of the rounds before have failed one after the other.
    """

    needs = HERE
    centers: F64
    limits: Limits
    draws: F64
    n_failures: int = 0


@dataclass(frozen=True, slots=True)
class Transported:
    """Rows in clusters of limited size."""

    labels: Labels
    prices: F64
    """What a row pays in a cluster beside its own cost: above 0 where that is full, below where it wants rows."""


@dataclass(frozen=True, eq=False)
class Transport(Pass[Transported]):
    """Put rows where they cost least, at least `least` and at most `most` into each cluster.

    Row n may be in the clusters near[n], (N, m), at these costs; `prices` (C,) are those to begin with. Where there is
    no way to keep the limits so, some clusters keep too many rows, or too few. The rows of the shard do not matter.
    """

    needs = HERE
    near: Labels
    costs: F64
    prices: F64
    least: int
    most: int


@dataclass(frozen=True)
class SolveLine(Pass[Found]):
    """The best centres of rows with one column, ascending; none where float64 cannot tell. O(N log N)."""

    needs = HERE | Need.DENSE | Need.CPU
    n_clusters: int


@dataclass(frozen=True, eq=False)
class RoughCells(Pass[CenterCells]):
    """The rows in cells: a few Lloyd steps from these middles, up to rounding, and then the closest middle of each row.

    Middles without rows stay where they are, and at the end are left out. It saves a card the many small steps in
    between; elsewhere `lloyd` takes them.
    """

    needs = HERE | Need.DENSE | Need.CARD
    middles: F64
    n_steps: int
