"""Few rows beside the algorithm: clustered without a pass (see `kernels.few_rows`), or drawn among themselves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit.tiles import ROWS, tile_for
from globular.kernels import few_rows as kernels
from globular.kernels.draws import accept_proposals, match_swaps, run_chains
from globular.kernels.few_rows import DECAY, LEAD, LEAST_STAKE, REACH, Desk, StepLimits, TrialLimits
from globular.model.statistics import F64

__all__ = [
    "DECAY", "LEAD", "LEAST_STAKE", "REACH", "FewRows", "Found", "SeedRows", "StepLimits", "TrialLimits",
    "accepted_proposals", "are_few", "are_few_to_seed", "ends_of_chains", "matched_swaps", "most_few_rows",
]  # fmt: skip

MOST_ROWS, MOST_NUMBERS, MOST_DISTANCES = 1 << 15, 1 << 18, 1 << 18
"""Rows, their numbers, and distances of a step, up to which rows are few; beyond, passes over parts of them take less
time."""
MOST_CLUSTERS = 64
"""Swaps of one centre after the other suit few clusters; of more, passes swap several at once."""
SEED_DISTANCES = 1 << 21
"""Distances of all rows from all seeds up to which rows are few to be seeded, whatever the number of clusters: greedy
seeds would take two passes each."""
NOBODY = 0.0625 / float(np.finfo(np.float64).tiny)
"""A norm that no centre has."""
NOBODY_BITS = int(np.array(NOBODY).view(np.int64))
NO_ROUND, NO_TRIAL = np.empty((0, 1)), TrialLimits(0.0, 0.0, 0, 0)
"""What there is of swaps where steps alone are wanted."""


def most_few_rows(n_columns: int, n_clusters: int) -> int:
    """The most rows that are few, for so many clusters; none where these are many."""
    if n_clusters > MOST_CLUSTERS:
        return 0
    return min(MOST_ROWS, MOST_NUMBERS // n_columns, MOST_DISTANCES // n_clusters)


def are_few(n_rows: int, n_columns: int, n_clusters: int) -> bool:
    """Whether so many rows are few, for so many clusters."""
    return n_rows <= most_few_rows(n_columns, n_clusters)


def are_few_to_seed(n_rows: int, n_columns: int, n_clusters: int) -> bool:
    """Whether so many rows are few for greedy seeds, also of more clusters than are searched."""
    return n_rows <= min(MOST_ROWS, MOST_NUMBERS // n_columns, SEED_DISTANCES // n_clusters)


class SeedRows(NamedTuple):
    """Rows that are seeds of k-means++, and the Σ w d² that they leave."""

    indices: NDArray[np.intp]
    potential: float


class Found(NamedTuple):
    """Centres, their objective at most, and what it took to find them."""

    centers: F64
    objective: float
    n_steps: int
    n_failures: int = 0
    """Trials that have failed since the last success."""


class FewRows:
    """Rows with weights, about their mean unless centres shall have unit length."""

    def __init__(self, rows: F64, weights: F64, *, unit_centers: bool = False) -> None:
        self.n_rows = len(rows)
        self._offset = np.zeros(rows.shape[1]) if unit_centers else weights @ rows / weights.sum()
        self._x = rows - self._offset
        self._columns, self._weights = np.ascontiguousarray(self._x.T), weights
        self._last_desk: Desk | None = None
        self._squares = np.zeros(len(rows) + ROWS)
        np.einsum("ij,ij->i", self._x, self._x, out=self._squares[: len(rows)])

    def seeds(self, draws: F64) -> SeedRows:
        """k-means++ seeds by draws in [0, 1), (C, trials for each); fewer where there are fewer distinct rows."""
        seeds, potentials = np.empty(len(draws), dtype=np.intp), np.empty(len(draws))
        n = kernels.seed_few(
            self._x, self._columns, self._weights, draws, seeds, potentials, np.empty((4, len(self._weights)))
        )
        return SeedRows(seeds[:n], float(potentials[n - 1]))

    def step(self, centers: F64, limits: StepLimits) -> Found:
        """Iterations with momentum."""
        desk = self._desk(centers)
        objective, n_steps, _ = kernels.try_few(
            self._x, self._columns, self._weights, NO_ROUND, limits, NO_TRIAL, 0, desk.means, desk
        )
        return Found(desk.means + self._offset, objective, n_steps)

    def swap(self, centers: F64, draws: F64, of_steps: StepLimits, of_trials: TrialLimits, n_failures: int) -> Found:
        """Swaps that are tried out, a round for every line of draws in [0, 1)."""
        desk, best = self._desk(centers), centers - self._offset
        found = kernels.try_few(
            self._x, self._columns, self._weights, draws, of_steps, of_trials, n_failures, best, desk
        )
        return Found(best + self._offset, *found)

    def _desk(self, centers: F64) -> Desk:
        """The arrays to work on, with these centres."""
        if self._last_desk is None or len(self._last_desk.centers) != len(centers):
            self._last_desk = self._new_desk(len(centers))
        np.subtract(centers, self._offset, out=self._last_desk.centers)
        return self._last_desk

    def _new_desk(self, C: int) -> Desk:
        n, D = self._x.shape
        tile = tile_for(C, D, 8)
        K = -(-C // tile.step) * tile.step
        closest, second = np.empty((2, n + ROWS))
        running, apart = np.empty((2, n))
        centers, means, last, velocity = np.empty((4, C, D))
        counts, losses = np.empty((2, C))
        return Desk(
            np.empty(n + ROWS, dtype=np.int32), closest, second, self._squares, running, apart, np.arange(n),
            centers, means, last, velocity, counts, losses, np.empty((2, D)),
            np.zeros((K // tile.width, D, tile.width)), np.full(K, NOBODY), np.array([-1 << (K - 1).bit_length()]),
            NOBODY_BITS, np.empty((0, K)),
        )  # fmt: skip


def accepted_proposals(proposals: F64, before: F64, tests: F64) -> NDArray[np.bool_]:
    """Which proposals of D² sampling stay by rejection, each given those before it; the first one always does.

    `before` are their squared distances to the seeds that they were drawn with. O(n² D).
    """
    accepted = np.empty(len(proposals), dtype=np.bool_)
    proposals, before = np.asarray(proposals), np.asarray(before)
    accept_proposals(proposals, tests, before, before.copy(), accepted)
    return accepted


def ends_of_chains(proposals: F64, q: F64, tests: F64, squared: F64) -> NDArray[np.intp]:
    """Where Metropolis chains end that go over their proposals one after the other, π/q = d²/q.

    There are as many chains as rows of `tests`, and each lowers d² for those behind it. The first chain that ends on a
    seed is the last one.
    """
    last = np.empty(len(tests), dtype=np.intp)
    proposals, q, squared = map(np.asarray, (proposals, q, squared))
    return last[: run_chains(proposals, q, tests, squared.copy(), last)]


def matched_swaps(
    losses: F64, nearest: NDArray[np.int32], gains: F64, owners: NDArray[np.int32], safety: float
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The best splits get the centres that are least missed: new names of the clusters, and for each split the centre
    it gets or −1."""
    names, seats = np.arange(len(losses), dtype=np.int32), np.full(len(owners), -1, dtype=np.int32)
    spares, best = np.argsort(losses, kind="stable"), np.argsort(-gains, kind="stable")
    losses, nearest, gains, owners, spares, best = map(np.asarray, (losses, nearest, gains, owners, spares, best))
    settled = np.zeros(len(losses), dtype=np.bool_)
    match_swaps(losses, np.ascontiguousarray(nearest), spares, gains, best, owners, safety, settled, names, seats)
    return names, seats
