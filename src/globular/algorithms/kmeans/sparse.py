"""K-means of sparse rows with sparse centres: every iteration exact, at the cost of the few entries that matter.

Rows share columns with few others, so both k-means++ seeds (`SeedSparse`) and labels among thousands of centres
(`AssignSparse`) come from inverted files. A greedily drawn seed costs less than it takes to look at a thousandth of the
rows, and nothing is as long as (C, D) before the end.

[Aoyama, Saito and Ikeda 2020]
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import count

import numpy as np

from globular.algorithms.kmeans.nested import NestedModel, NestedOptions
from globular.algorithms.kmeans.probing import ProbingOptions
from globular.algorithms.seeding.common import greedy_trials
from globular.algorithms.steps import Step
from globular.model.history import SEEDS
from globular.model.nested import Batch
from globular.model.sparse_centers import SparseCenters, SparseMeans, SparseStatistics
from globular.seam.passes import LabelBySeeds
from globular.seam.shard import Shard
from globular.seam.sparse_passes import AssignSparse, LabelSparse, SeedSparse

SEEDS_AT_ONCE = (64, 16)
"""Seeds that are drawn before a fit can be ended, or tell how far it is: 64, or one in 16 of all."""
TRIALS = 3
"""Times as many draws for each seed as scikit-learn takes: errors end 0.4 % lower, for a tenth of the time."""


def seed_sparsely(
    shard: Shard, n_clusters: int, rng: np.random.Generator
) -> Generator[Step[SparseCenters], None, SparseCenters]:
    """Greedy k-means++ seeds, repeated where fewer rows are distinct; the rows get the closest one for a label."""
    seeds = SparseCenters.of(np.empty((0, shard.n_columns)))
    while seeds.shape[0] < n_clusters:
        n_more = min(max(SEEDS_AT_ONCE[0], n_clusters // SEEDS_AT_ONCE[1]), n_clusters - seeds.shape[0])
        n_before, draws = seeds.shape[0], rng.random((n_more, TRIALS * greedy_trials(n_clusters)))
        found = shard.run(SeedSparse(draws, n_before, is_last=n_before + n_more == n_clusters))
        if len(found.indices):
            seeds = seeds.followed_by(found.centers)
            yield Step(0, found.potential, 0, None, seeds, stage=SEEDS, lift=SparseCenters.dense_centers)
        if len(found.indices) < n_more:
            break
    shard.run(LabelBySeeds())
    return seeds.picked(np.arange(n_clusters) % seeds.shape[0])


def best_sparse_seeds(
    shard: Shard, n_clusters: int, n_starts: int, rng: np.random.Generator
) -> Generator[Step[SparseCenters], None, SparseCenters]:
    """The seeds of the lowest error of several draws."""
    found = []
    for _ in range(n_starts):
        centers = yield from seed_sparsely(shard, n_clusters, rng)
        found.append((shard.run(LabelSparse(centers)).objective if n_starts > 1 else 0.0, centers))
    return min(found, key=lambda pair: pair[0])[1]


def sparse_kmeans(
    shard: Shard, centers: SparseCenters, options: ProbingOptions, *, fills: bool = True
) -> Iterator[Step[SparseMeans]]:
    """Lloyd's algorithm; it ends when no label changes, or by `min_gain`, `tol` and `max_iter` of the options."""
    before = np.inf
    for iteration in count(1):
        statistics = shard.run(AssignSparse(centers))
        objective = statistics.objective
        means = _means(statistics, centers, unit=options.unit_centers, fills=fills)
        if objective == 0.0:  # rows that lie at their centres have nothing to gain from means, which are rounded
            means = replace(means, matrix=centers.matrix)
        n_relocated = statistics.far.shape[0] if fills else 0
        gain, before = before - objective, objective
        n_changed = statistics.n_changed if iteration > 1 else shard.n_rows
        n_distances = statistics.n_distances
        del statistics  # its sums are as large as the rows
        stopped = ""
        if n_changed + n_relocated == 0 or objective == 0.0:
            stopped = "no label changed"
        elif options.min_gain > 0 and gain < options.min_gain * options.at_stake(objective) and n_relocated == 0:
            stopped = "an iteration gained less than quality asks for"
        elif options.tol > 0 and means.squared_shift(centers) <= options.tol:
            stopped = "centres moved less than tol"
        elif iteration >= options.max_iter:
            stopped = "max_iter"
        yield Step(iteration, objective, n_distances, n_changed, means, stopped, lift=SparseCenters.dense_centers)
        if stopped:
            return
        centers = means


def nested_sparse_kmeans(
    shard: Shard, centers: SparseCenters, options: NestedOptions, rng: np.random.Generator
) -> Iterator[Step[NestedModel]]:
    """Lloyd's algorithm on nested batches, each twice as large as the one before, until all rows are in.

    Deviation: every iteration adds up its batch anew, and the batch doubles once an iteration gains less than 1 / ρ² of
    what the sample leaves open: Σ v(j) σ̂_C(j)² is about the share k / (b − k) of the energy.
    """
    N, k, seed, n_visits, n_steps = shard.n_rows, centers.shape[0], int(rng.integers(2**63)), 0, 0
    b = min(options.b0, N)
    shard.labels[:] = -1
    while n_visits < options.max_epochs * N:
        rows, is_full = Batch(seed, b, N).rows(N), b == N
        part = shard if is_full else shard.subset(rows)
        part.labels[:] = shard.labels[rows]
        stepping = ProbingOptions(
            0, max_iter=math.ceil((options.max_epochs * N - n_visits) / b), unit_centers=options.unit_centers,
            min_gain=options.min_gain if is_full else k / (max(1, b - k) * options.rho**2),
            tol=options.tol if is_full else 0.0,
        )  # fmt: skip
        for step in sparse_kmeans(part, centers, stepping, fills=is_full):
            shard.labels[rows] = part.labels
            centers, n_visits, n_steps = step.model, n_visits + b, n_steps + 1
            yield Step(
                n_steps, step.objective * shard.total_weight / part.total_weight, step.n_distances, step.n_changed,
                NestedModel(centers, b, n_visits),
                step.stopped if is_full or n_visits >= options.max_epochs * N else "",
            )  # fmt: skip
        if is_full:
            return
        b = min(2 * b, N)


def _means(statistics: SparseStatistics, old: SparseCenters, *, unit: bool, fills: bool) -> SparseMeans:
    """Means of the clusters; those that have run empty move to far rows."""
    sums, counts, far = statistics.sums, statistics.counts, statistics.far
    divisors = np.sqrt(sums.norms) if unit else counts
    means = sums.over(np.where(divisors > 0, divisors, 1.0))
    kept = np.flatnonzero(divisors <= 0)  # without rows, or opposite rows cancel: the cluster keeps its centre
    if len(kept):
        means = means.replaced(kept, old.picked(kept))
        if fills:
            means = means.replaced(np.flatnonzero(counts <= 0)[: far.shape[0]], far)
        divisors = np.maximum(divisors, 0.0)
    return SparseMeans(means.matrix, counts, divisors)
