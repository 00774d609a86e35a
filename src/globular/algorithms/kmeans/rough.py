"""Seeds and Lloyd steps for some thousands of rows in plain NumPy, up to rounding: where k-means is not the end.

Cells of centres and starts of mixtures take a few steps over rows that are few beside those of the fit, and need
neither exact labels nor bounds from step to step. A product of matrices and a search for the smallest number are as
fast, and nothing has to be compiled for them: the kernels of the hard pass are a third of what the first fit on a
machine would wait for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from globular.algorithms.seeding.common import evenly_spread_masses, greedy_trials, repeat_rows
from globular.model.statistics import F64
from globular.seam.passes import Index
from globular.seam.shard import Shard
from globular.threads import even_ranges, map_all, single_threaded_blas

SCORES_AT_ONCE = 1 << 17
"""Scores of a block of rows, which stay in the cache until the smallest are found."""
SECONDS_PER_PRODUCT = 6e-11
"""Of a number of a row and one of a centre, about."""
REMOTE = 30.0
"""Times the typical distance from the mean: beside a row so far off others hardly differ in single precision."""
FAR = 1e15
"""Times the range of the rows: a centre beyond is as far off as one there, whose square is a number."""
NOTHING_LEFT = 1e-12
"""Share of the variance that rounding leaves where every row is a seed."""
MOST_SAMPLED, SAMPLED_NUMBERS = 4096, 1 << 20
"""Rows that stand for all of a shard, or as many as have so many numbers if that is less."""


class RoughClusters(NamedTuple):
    """Centres, and the closest of them for every row."""

    centers: F64
    labels: Index


class RoughRun(NamedTuple):
    """Centres, the Σ w d² that they leave, and the distances that it took to find them."""

    centers: F64
    error: float
    n_distances: int


class _Rows:
    """Rows about their mean, in units of their range: for sums, and for products.

    `single` allows the latter in single precision, unless a row is remote.
    """

    def __init__(self, rows: F64, weights: F64 | None, n_threads: int, *, single: bool = False) -> None:
        self._middle = rows.mean(axis=0)
        about = rows - self._middle
        self._unit = float(np.abs(about).max(initial=0.0)) or 1.0
        about /= self._unit
        single = single and REMOTE**2 * float(np.square(about).mean()) > 1.0
        self._scored = np.empty((len(rows), rows.shape[1] + 1), dtype=np.float32 if single else np.float64)
        self._scored[:, :-1] = about
        self._scored[:, -1] = 1.0
        weighted = about if weights is None else np.multiply(about, weights[:, None], out=about)
        self._summed = np.ascontiguousarray(weighted.T)
        self._weights, self._n_threads = weights, n_threads

    def closest(self, centers: F64) -> Index:
        """The closest centre of every row, up to rounding. O(N C D)."""
        (n, D), C = self._scored.shape, len(centers)
        factors = np.clip((centers - self._middle) / self._unit, -FAR, FAR).astype(self._scored.dtype)
        factors = np.column_stack([factors, np.einsum("ij,ij->i", factors, factors) / self._scored.dtype.type(-2)])

        def look(block: tuple[int, int]) -> Index:
            return np.argmax(self._scored[slice(*block)] @ factors.T, axis=1)

        blocks, seconds = even_ranges(n, max(1, SCORES_AT_ONCE // C)), SECONDS_PER_PRODUCT * n * C * D
        return np.concatenate(map_all(look, blocks, self._n_threads, seconds=seconds))

    def means(self, labels: Index, centers: F64) -> F64:
        """The mean of every cluster's rows; centres without rows stay where they are. O(N D)."""
        counts = np.bincount(labels, self._weights, len(centers))
        sums = np.stack([np.bincount(labels, column, len(centers)) for column in self._summed], axis=1)
        filled = counts > 0
        means = centers.copy()
        means[filled] = self._middle + sums[filled] * (self._unit / counts[filled, None])
        return means


def grouped(labels: Index, n_labels: int) -> Index:
    """Rows in the order of their labels; of few labels, which take 16 bits, in a tenth of the time."""
    return np.argsort(labels.astype(np.uint16) if n_labels <= 1 << 16 else labels, kind="stable")


def rough_lloyd(
    rows: F64,
    centers: F64,
    n_steps: int,
    *,
    weights: F64 | None = None,
    tol: float = 0.0,
    n_threads: int = 1,
    single: bool = False,
) -> RoughClusters:
    """At most so many Lloyd steps, until the squared shifts of all centres together fall to `tol`.

    Centres without rows stay where they are. `single` is for what may be grouped in any way: products are in single
    precision then.
    """
    prepared = _Rows(rows, weights, n_threads, single=single)
    for _ in range(n_steps):
        moved = prepared.means(prepared.closest(centers), centers)
        shift, centers = float(np.square(moved - centers).sum()), moved
        if shift <= tol:
            break
    return RoughClusters(centers, prepared.closest(centers))


@single_threaded_blas  # sums over rows are the same then for any number of threads
def rough_seeds(rows: F64, weights: F64, n_seeds: int, rng: np.random.Generator) -> F64:
    """Greedy k-means++: of some rows drawn by their error the best is the next seed. O(N · n_seeds log n_seeds · D).

    They are repeated where there are fewer distinct rows.
    """
    about = rows - rows.mean(axis=0)
    about /= float(np.abs(about).max(initial=0.0)) or 1.0
    squares, ones = np.einsum("ij,ij->i", about, about), np.ones(len(rows))
    scored, factors = np.column_stack([about, squares, ones]), np.column_stack([-2.0 * about, ones, squares])
    chosen = [min(int(np.cumsum(weights).searchsorted(rng.random() * weights.sum(), side="right")), len(rows) - 1)]
    d2 = np.maximum(scored @ factors[chosen[0]], 0.0)
    n_trials, least = greedy_trials(n_seeds), NOTHING_LEFT * float(weights @ squares)
    for _ in range(n_seeds - 1):
        errors = np.cumsum(weights * d2)
        if errors[-1] <= least:
            break
        drawn = np.minimum(errors.searchsorted(rng.random(n_trials) * errors[-1], side="right"), len(rows) - 1)
        trials = factors[drawn] @ scored.T  # (n_trials, N): what is looked at next lies together
        np.clip(trials, 0.0, d2, out=trials)
        best = int(np.argmin(trials @ weights))
        chosen.append(int(drawn[best]))
        d2 = trials[best]
    return repeat_rows(rows[chosen], n_seeds)


def best_of_rough(
    rows: F64, weights: F64, n_clusters: int, n_starts: int, n_steps: int, rng: np.random.Generator, n_threads: int = 1
) -> RoughRun:
    """The best of some runs, side by side, each from seeds of its own."""
    prepared = _Rows(rows, weights, n_threads)

    def run(own: np.random.Generator) -> tuple[float, F64]:
        centers = rough_seeds(rows, weights, n_clusters, own)
        for _ in range(n_steps):
            centers = prepared.means(prepared.closest(centers), centers)
        errors = np.square(rows - centers[prepared.closest(centers)]).sum(axis=1)
        return float(weights @ errors), centers

    own = [np.random.default_rng(seed) for seed in rng.integers(2**63, size=n_starts)]
    error, centers = min(map_all(run, own, n_threads), key=lambda found: found[0])
    n_looks = n_starts * (greedy_trials(n_clusters) + n_steps + 1)
    return RoughRun(centers, error, n_looks * len(rows) * n_clusters)


def distances_to_closest(rows: F64, centers: F64, n_threads: int = 1) -> F64:
    """Squared distances of rows to their closest centres; where two are all but equally close, to one of these."""
    return np.square(rows - centers[_Rows(rows, None, n_threads).closest(centers)]).sum(axis=1)


def variance_within(shard: Shard, means: F64) -> float:
    """How far rows are from their closest means: the variance of a column, from some rows that stand for all."""
    n = min(shard.n_rows, MOST_SAMPLED, max(64, SAMPLED_NUMBERS // shard.n_columns))
    masses = evenly_spread_masses(shard.total_weight, n, np.random.default_rng(0))
    rows = np.asarray(shard.take(shard.locate(masses)), dtype=np.float64)
    return float(distances_to_closest(rows, np.asarray(means), shard.n_threads).mean()) / shard.n_columns
