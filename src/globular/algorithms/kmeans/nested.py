"""Nested mini-batch k-means (Newling & Fleuret 2016), and the algorithms between it and its relatives.

A mini-batch that is drawn anew every time profits little from bounds, since most of its rows have never been seen.
So batches nest: M_t ⊆ M_{t+1}, the first b_t rows of one random order. Every row votes once: before it is used again
its former vote is taken back. The batch doubles when the centres move much less than their standard error, for then it
says nothing new. The paper asks every centre (min_j σ̂_C(j) / p(j) > ρ). One row that moves shifts a cluster of v rows
by about σ̂_C / √v, so ρ = 100 waits until not a single row moves, which takes as many iterations again as the batch had
any use for. All centres together (`NestedOptions.together`) say it sooner: what a step gains, Σ_j v(j) p(j)², is
compared with what the sample does not know, Σ_j v(j) σ̂_C(j)², about the share k / b of the energy.

| | nested | remove_old | b₀ | bounds |
|---|---|---|---|---|
| lloyd | yes | yes | N | none |
| yinyang | yes | yes | N | yinyang |
| mbatch (Sculley 2010) | no | no | b | none |
| mbatch.remove | no | yes | b | none |
| nmbatch | yes | yes | b₀ | elkan or yinyang |
| nmbatch.deact | yes | yes | b₀ | none |

Deviation: sse(j) is not summed over the rows of the batch but follows from S, v and Σ w ‖x‖² (`Votes.sse`), so that a
row whose bounds settle it need not be read at all; bounds change neither labels nor the growth of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np

from globular.algorithms.kmeans.cells import draw_cells, group_centers
from globular.algorithms.kmeans.centers import place_empty
from globular.algorithms.kmeans.halves import count_halves, cut_in_halves, swap_halves
from globular.algorithms.kmeans.votes import AnyVotes, ColumnVotes, Votes
from globular.algorithms.steps import Step
from globular.model.nested import Batch, Bounds, Candidates, CenterGroups, NestedSearch, NestedStatistics
from globular.model.sparse_centers import SparseMeans
from globular.model.statistics import F64
from globular.seam.among import Need
from globular.seam.passes import AssignBatch, Relabel
from globular.seam.shard import Shard

BoundKind = Literal["elkan", "yinyang"]
TINY = float(np.finfo(np.float64).tiny)
RHO_TOGETHER = 5.0
"""ρ for all centres together: a step that gains a twenty-fifth of what the sample does not know is not worth its time.
Measured with 50 clusters of five data sets, dense and sparse; 3 and 10 are nearly as good (docs/nested.md)."""


@dataclass(frozen=True, slots=True)
class NestedOptions:
    """Which of the algorithms, and when to stop."""

    b0: int
    rho: float = 100.0
    together: bool = False
    """Whether all centres together must move less than their standard error over ρ for the batch to double, or each."""
    nested: bool = True
    remove_old: bool = True
    bounds: BoundKind | None = "elkan"
    n_probes: int = 0
    """Cells of centres that a row looks at, at a cost of about √k instead of k; 0 looks at all centres."""
    run: int = 1
    """Rows that stay together in the random order, for data that are read from disk."""
    max_epochs: float = 100
    """Stop when as many rows have been visited as this many times the data have."""
    tol: float = 0.0
    """More than 0: stop when the squared shifts of all centres add up to this; batches that nest must be full."""
    max_no_improvement: int | None = None
    """Stop after this number of batches that did not lower the energy; those that nest grow first, until full."""
    min_gain: float = 0.0
    """Share of the energy by which a batch must lower it to count as an improvement."""
    reassignment_ratio: float = 0.0
    """Centres with less than this share of the largest count move to random rows when the batch grows."""
    unit_centers: bool = False


@dataclass(frozen=True, slots=True)
class NestedModel:
    """Votes, and the centres that are their means. Good until the next step, which changes the votes in place."""

    votes: AnyVotes | SparseMeans
    batch_size: int
    n_visits: int
    """Rows visited so far, each as often as it was."""

    @property
    def centers(self) -> F64:
        """The centres, (k, D)."""
        return self.votes.dense_centers()


def nested_kmeans(
    shard: Shard, centers: F64, options: NestedOptions, rng: np.random.Generator
) -> Iterator[Step[NestedModel]]:
    """Alg. 5. The objective of a step is the inertia of all rows as its batch estimates it."""
    N, weight = shard.n_rows, shard.total_weight
    votes, bounds = _no_votes(shard, centers, options), _first_bounds(shard, centers, options)
    plateau, seed, b, n_visits = Plateau(options), int(rng.integers(2**63)), min(options.b0, N), 0
    for t in count(1):
        batch = Batch(seed, b, N, options.run)  # M_t
        search = NestedSearch(bounds, _candidates(shard, votes, options, rng), options.remove_old, restart=t == 1)
        change = shard.run(AssignBatch(votes.centers, votes.origin, batch, search))  # lines 9–29
        update = update_centers(shard, votes, change, options)
        stalled = plateau.after(update.energy, b)
        # Line 36. Deviation: all centres together may be asked instead of each. And a batch that has nothing left to
        # improve grows too; with cells, whose noise moves some centre every time, it might never otherwise.
        ratio = update.mean_ratio if options.together else update.smallest_ratio
        grows = options.nested and b < N and (ratio > options.rho or ratio == np.inf or stalled)
        shifts = update.shifts
        if grows and options.reassignment_ratio > 0:
            shifts = shifts + reassign(shard, votes, batch, options, rng)
        filled = options.nested and batch.is_full and (votes.sizes == 0).any()
        if filled:
            moved = fill_empty(shard, votes, options)
            shifts, filled = shifts + moved, moved.any()
        bounds = None if bounds is None else bounds.after(shifts)
        n_visits += change.n_rows
        stopped = ""
        if options.nested and batch.is_full and change.n_changed == 0 and not filled:
            stopped = "no label changed"
        elif options.tol > 0 and (batch.is_full or not options.nested) and float(shifts @ shifts) <= options.tol:
            stopped = "centres moved less than tol"
        elif stalled and not grows and not filled:
            stopped = "max_no_improvement"
        elif n_visits >= options.max_epochs * N:
            stopped = "max_iter"
        model = NestedModel(votes, change.n_rows, n_visits)
        yield Step(t, update.energy * weight, change.n_distances, change.n_changed, model, stopped)
        if stopped:
            return
        if grows:
            b = min(2 * b, N)  # line 37
        if not options.nested:
            seed = int(rng.integers(2**63))


def one_batch(
    shard: Shard, votes: Votes, halves: Votes | None, options: NestedOptions, step: int, rng: np.random.Generator
) -> Update:
    """All rows of a shard as batch number `step` (from 0) beside what was voted before: Alg. 4 for a stream.

    Deviation: with votes for `halves` centres are swapped. That is done, and weak centres are moved, each time ten rows
    per cluster have gone by in batches as large as this one.
    """
    batch, k = Batch(0, shard.n_rows, shard.n_rows), len(votes.counts)
    candidates = _candidates(shard, votes, options, rng)
    search = NestedSearch(None, candidates, remove_old=False, restart=True)
    change = shard.run(AssignBatch(votes.centers, votes.origin, batch, search))
    cut = None if halves is None else cut_in_halves(votes, halves)
    update = update_centers(shard, votes, change, options)
    if halves is not None and cut is not None:
        count_halves(shard, halves, cut, rng)
    wait = 10 * k  # as in scikit-learn
    if step * batch.size % wait + batch.size < wait:
        return update
    if halves is not None:
        cells = None if candidates is None else candidates.cells
        swap_halves(shard, votes, halves, cells, unit=options.unit_centers)
    if options.reassignment_ratio > 0:
        moved = reassign(shard, votes, batch, options, rng) > 0
        if halves is not None:
            halves.sums[moved] = halves.counts[moved] = 0.0
    return update


def first_votes(shard: Shard, centers: F64, options: NestedOptions, rng: np.random.Generator) -> Votes:
    """No votes yet, for seeds after three steps of k-means on the first batch of a stream."""
    votes = Votes.none(centers)
    for _ in range(3):
        one_batch(shard, votes, None, options, 0, rng)
        votes = Votes.none(votes.centers)
    return votes


def _no_votes(shard: Shard, centers: F64, options: NestedOptions) -> AnyVotes:
    """Sparse rows in memory vote column by column; cells, and centres of unit length, need them as rows."""
    by_column = Need.SPARSE not in shard.lacks and options.n_probes == 0 and not options.unit_centers
    if by_column and ColumnVotes.suit(centers):
        return ColumnVotes.none(shard, centers)
    return Votes.none(centers)


def default_groups(n_clusters: int, n_columns: int) -> int:
    """A tenth of the clusters, as in Ding et al. (2015), but bounds of at most a quarter of float32 rows."""
    return max(1, min(n_clusters // 10, n_columns // 4))


def _first_bounds(shard: Shard, centers: F64, options: NestedOptions) -> Bounds | None:
    k = len(centers)
    if options.bounds is None or options.n_probes > 0 or not options.nested:
        return None
    if options.bounds == "elkan":
        return Bounds.start(CenterGroups(np.arange(k), np.arange(k + 1)))
    n_groups = default_groups(*centers.shape)
    cells = group_centers(shard, centers, centers[np.linspace(0, k - 1, n_groups).astype(np.intp)])
    return Bounds.start(CenterGroups(cells.order, cells.starts))


def _candidates(shard: Shard, votes: AnyVotes, options: NestedOptions, rng: np.random.Generator) -> Candidates | None:
    """Cells are drawn anew for every batch: the same ones would miss the same neighbours again."""
    if options.n_probes == 0:
        return None
    return Candidates(draw_cells(shard, votes.dense_centers(), rng), options.n_probes)


@dataclass(frozen=True, slots=True)
class Update:
    """The M-step of a batch."""

    shifts: F64
    """p(j), (k,)."""
    energy: float
    """Mean squared distance to the old centres, per unit of weight."""
    smallest_ratio: float
    """min_j σ̂_C(j) / p(j)."""
    mean_ratio: float
    """√(Σ_j v(j) σ̂_C(j)² / Σ_j v(j) p(j)²)."""


def update_centers(shard: Shard, votes: AnyVotes, change: NestedStatistics, options: NestedOptions) -> Update:
    """Lines 30–35: count the votes, move the centres, compare how far they moved with their standard error."""
    moved = votes.move(shard, change, unit=options.unit_centers)
    p, sse = moved.shifts, moved.sse
    # votes that nobody takes back hold rows several times: only what the last batch brought tells its energy
    total, weight = (sse, votes.counts) if options.remove_old else (moved.batch_sse, change.counts)
    energy = float(total.sum() / max(weight.sum(), TINY))
    # Eq. 4 with weights: the mean squared distance over the rows less one; p(j) = 0 is an infinite ratio, a cluster of
    # one row has no σ̂, and neither holds the doubling back
    several = votes.sizes > 1
    v, p_squared = votes.counts[several], p[several] * p[several]
    variances = sse[several] / (v * (votes.sizes[several] - 1.0))
    moving = p_squared > 0
    smallest = np.min(variances[moving] / p_squared[moving], initial=np.inf)
    movement = float(v @ p_squared)
    mean = float(v @ variances) / movement if movement > 0 else np.inf
    return Update(p, energy, float(np.sqrt(smallest)), float(np.sqrt(mean)))


def fill_empty(shard: Shard, votes: AnyVotes, options: NestedOptions) -> F64:
    """Clusters without rows move to far ones, which find them in the next pass. Returns how far every centre moved.

    Deviation: the paper leaves them where they are. Once all rows are in, no row will come to them any more.
    """
    centers = votes.dense_centers()
    sums, counts = np.zeros_like(centers), votes.counts.copy()
    empty = np.flatnonzero(votes.sizes == 0)
    found = place_empty(shard, empty, sums, counts, centers, options.unit_centers, rows_follow=False)
    clusters = np.array([cluster for cluster, _ in found], dtype=np.intp)
    return votes.place(clusters, sums[clusters] / counts[clusters, None])


class Plateau:
    """Tells when the energy has stopped improving; rows that join raise it, so the count starts anew with them."""

    def __init__(self, options: NestedOptions) -> None:
        self._patience, self._gain = options.max_no_improvement, options.min_gain
        self._size, self._lowest, self._n_waited = 0, np.inf, 0

    def after(self, energy: float, size: int) -> bool:
        """Take note of a batch; True when there were too many without improvement."""
        if size != self._size:
            self._size, self._lowest, self._n_waited = size, np.inf, 0
        if energy < (1.0 - self._gain) * self._lowest:
            self._n_waited, self._lowest = 0, energy
        else:
            self._n_waited += 1
        return self._patience is not None and self._n_waited >= self._patience


def reassign(shard: Shard, votes: AnyVotes, batch: Batch, options: NestedOptions, rng: np.random.Generator) -> F64:
    """Move centres that hardly any row votes for to random rows of the batch; returns how far each centre moved.

    Rows that had voted for one have not voted then.
    """
    weak = np.flatnonzero(votes.counts < options.reassignment_ratio * votes.counts.max())
    weak = weak[np.argsort(votes.counts[weak], kind="stable")][: batch.size // 2]
    rows = shard.take(batch.draw(len(weak), rng))
    if options.unit_centers:
        rows = rows[rows.any(axis=1)]  # a row of zeros has no direction
    weak = weak[: len(rows)]
    if options.remove_old and len(weak):
        names = np.arange(len(votes.counts) + 1, dtype=np.int32)
        names[weak] = names[-1] = -1  # the last entry is where −1 itself points to
        shard.run(Relabel(names))
    return votes.place(weak, rows)
