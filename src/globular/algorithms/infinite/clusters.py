"""Clusters from the components of a mixture: parts of a cluster that is no Gaussian become one (after Hennig 2010).

A density takes several Gaussians for a cluster that is not one. Two things tell parts of a cluster from clusters that
overlap. The rows of a part are not distributed as its Gaussian says: where the mixture is the truth, third and fourth
moments of rows weighted by q(i) are those of a Gaussian, whatever overlaps (Mardia 1970). And along the line that
separates them best, two clusters leave a valley between two peaks, and two parts of one cluster do not.

    repeat:  of all pairs that have not been looked at, the one most easily taken for each other
             leave it if the two, and all that overlap them, are Gaussians as far as their moments tell
             d = (Σ_i + Σ_j)⁻¹ (μ_j − μ_i)                                                     Fisher's discriminant
             f = density of dᵀx, rows weighted by q(i) + q(j), smoothed
             where f between the means is not much lower than the lower of the peaks around, the two become one
    clusters of fewer rows than a component is split off for are outliers of those that their rows would be of next

Deviation: Hennig asks whether a dip is significant, which it is for enough rows; here its depth decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.seeding.common import evenly_spread_rows
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64
from globular.seam.shard import Shard, answer
from globular.threads import map_all

VALLEY_SHARE = 0.65
"""A valley is one that is lower than this share of the lower peak."""
MISTAKEN = 0.045
"""Pairs are looked at if this share of the rows of one is taken for the other's."""
ALIKE = 0.2
"""Where this share is taken for the other's nobody can tell the two: a core and the tails around it."""
_ODD, _SURELY = 0.005, 3.0
"""Components are no Gaussians if their moments are off by more standard deviations than the second, and by more than
the first per row: enough rows show that nothing is a Gaussian. (Parts of uniform, t(4) and gamma clusters have 0.02 to
0.08.)"""
_MOST_SAMPLED, _FEWEST_ROWS, _MOST_SHARES = 50_000, 10_000, 2**25
"""Rows that are looked at: fewer where their responsibilities would be more numbers than this, but not below."""
_ROWS_PER_COLUMN = 4
"""Components with fewer rows than that say nothing of their moments."""
_COUNTED = 1e-4
"""Rows that a component holds less of than this share of the most are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What a component, or some that have become one, holds of the rows."""

    index: I64
    """The rows that it holds noticeably, ascending, (n,)."""
    weights: F64
    """w q of them, (n,)."""
    mean: F64
    covariance: F64
    n: float
    """How many rows of weight one would tell as much of its components' moments."""
    chi_squared: F64
    """How far third and fourth moments are off those of Gaussians, see `_oddness`, (2,)."""
    n_moments: F64
    """What that is in the mean where there is nothing but Gaussians, (2,)."""

    @classmethod
    def of(cls, rows: F64, weights: F64) -> Part:
        """A component with these weights of all rows."""
        index = np.flatnonzero(weights > _COUNTED * weights.max())
        weights = weights[index]
        if not len(index):  # no row of a sample need be its
            D = rows.shape[1]
            return cls(index, weights, np.zeros(D), np.zeros((D, D)), 0.0, np.zeros(2), np.zeros(2))
        mean, covariance, away = _moments(rows[index], weights)
        shares = weights / weights.sum()
        n = 1.0 / float((shares**2).sum())
        return cls(index, weights, mean, covariance, n, *_oddness(away, shares, n, covariance))

    def with_(self, other: Part, rows: F64) -> Part:
        """Both together."""
        index, place = np.unique(np.concatenate([self.index, other.index]), return_inverse=True)
        weights: F64 = np.bincount(place, np.concatenate([self.weights, other.weights])).astype(np.float64)
        mean, covariance, _ = _moments(rows[index], weights)
        return Part(
            index, weights, mean, covariance, self.n + other.n, self.chi_squared + other.chi_squared,
            self.n_moments + other.n_moments,
        )  # fmt: skip


def clusters_of(shard: Shard, mixture: GaussianParameters, smallest: float = 0.0) -> I64:
    """The cluster of every component, numbered by their first components, (T,), as a sample of the rows has them.

    None holds less weight than `smallest`, unless its rows could not be of another.
    """
    T = mixture.n_components
    n = min(shard.n_rows, _MOST_SAMPLED, max(_FEWEST_ROWS, _MOST_SHARES // T))
    index = evenly_spread_rows(shard.n_rows, n, np.random.default_rng(0))
    rows = np.asarray(shard.take(index), dtype=np.float64)
    weights = shard.take(index, "weights")
    shares = answer(shard.local(rows), mixture, "probabilities")
    smallest *= float(weights.sum()) / shard.total_weight
    return merged_clusters(rows, weights, shares, smallest, shard.n_threads)


def merged_clusters(rows: F64, weights: F64, shares: F64, smallest: float = 0.0, n_threads: int = 1) -> I64:
    """The cluster of every component, numbered by their first components, (T,); see `clusters_of`.

    `shares` are the responsibilities q_n(i) of the components for the rows, (N, T). O(N T + T³), and D² for every row
    and component that holds it.
    """
    T = shares.shape[1]
    names = np.arange(T)
    best = shares.argmax(axis=1)

    def look(i: int) -> tuple[Part, F64]:
        held = weights * shares[:, i]
        return Part.of(rows, held), np.bincount(best, held, T).astype(np.float64)

    found = map_all(look, range(T), n_threads)
    parts = [part for part, _ in found]
    shared = np.column_stack([held for _, held in found])  # what component j holds of the rows most likely of i
    unseen = ~np.tri(T, dtype=bool)  # pairs i < j that are yet to be looked at
    while True:
        counts = np.maximum(shared.sum(axis=0), 1e-300)
        mistaken = np.where(unseen, np.maximum(shared / counts, shared.T / counts[:, None]), 0.0)
        i, j = (int(k) for k in np.unravel_index(mistaken.argmax(), mistaken.shape))
        if mistaken[i, j] <= MISTAKEN:
            names = _without_outliers(names, shared, smallest)
            return np.unique(names, return_inverse=True)[1].astype(np.int64)
        unseen[i, j] = False
        if mistaken[i, j] < ALIKE:
            near = np.maximum(shared / counts, shared.T / counts[:, None])[[i, j]].max(axis=0) > MISTAKEN
            near[[i, j]] = True
            if are_gaussians([parts[k] for k in np.flatnonzero(near)]):
                continue
        both = parts[i].with_(parts[j], rows)
        if has_valley(rows, parts[i], parts[j], both):
            continue
        names[names == j] = i
        parts[i] = both
        shared[i] += shared[j]
        shared[:, i] += shared[:, j]
        shared[j] = shared[:, j] = 0.0
        unseen[i, i + 1 :] = unseen[:i, i] = True  # the pairs of a cluster that is another one now


def _without_outliers(names: I64, shared: F64, smallest: float) -> I64:
    """The names of the components' clusters, where those of less weight than `smallest` have the name of another."""
    counts, both = shared.sum(axis=0), shared + shared.T
    np.fill_diagonal(both, 0.0)
    small = {int(i) for i in np.unique(names) if counts[i] < smallest}
    both[:, list(small)] = 0.0
    for i in small:
        if both[i].any():
            names = np.where(names == i, int(both[i].argmax()), names)
    return names


def _moments(rows: F64, weights: F64) -> tuple[F64, F64, F64]:
    """Mean and covariance, and how far the rows are from the mean."""
    total = float(weights.sum())
    mean = weights @ rows / total
    away = rows - mean
    return mean, (away * weights[:, None]).T @ away / total, away


def _oddness(away: F64, weights: F64, n: float, covariance: F64) -> tuple[F64, F64]:
    """Squares of third and of fourth moments by their variances in n rows of a Gaussian, summed; and their numbers.

    E[z ‖z‖²] is zero for Gaussians, each entry with the variance 2 (D + 2) / n, and E‖z‖⁴ is
    D (D + 2) (n − 1) / (n + 1) with the variance 8 D (D + 2) / n (Mardia 1970).
    """
    values, vectors = np.linalg.eigh(covariance)
    wide = values > 1e-12 * values.max()
    D = int(wide.sum())
    if n < _ROWS_PER_COLUMN * D or D == 0:
        return np.zeros(2), np.zeros(2)
    z = away @ (vectors[:, wide] / np.sqrt(values[wide]))
    squared = (z**2).sum(axis=1)
    third = float((((weights * squared) @ z) ** 2).sum()) * n / (2 * (D + 2))
    fourth = (float(weights @ squared**2) - D * (D + 2) * (n - 1) / (n + 1)) ** 2 * n / (8 * D * (D + 2))
    return np.array([third, fourth]), np.array([D, 1.0])


def are_gaussians(parts: list[Part]) -> bool:
    """Whether third and fourth moments do not speak against it.

    All parts together are asked, because what small parts have in common each of them alone cannot tell from chance.
    """
    n_moments = np.sum([part.n_moments for part in parts], axis=0)
    excess = np.sum([part.chi_squared for part in parts], axis=0) - n_moments
    allowed = np.maximum(_ODD * sum(part.n for part in parts), _SURELY * np.sqrt(2.0 * n_moments))
    return bool((excess <= allowed).all())


def has_valley(rows: F64, one: Part, other: Part, both: Part) -> bool:
    """Whether the rows of two parts have a valley between the two, deeper than chance would make it."""
    weights = both.weights
    apart, covariance = other.mean - one.mean, one.covariance + other.covariance
    direction = np.linalg.lstsq(covariance, apart, rcond=None)[0]
    distance = float(direction @ apart)
    if not distance > 0:
        return False
    places = (rows[both.index] - one.mean) @ direction / distance  # the means are at 0 and 1
    spread = np.sqrt(0.5 * float(direction @ covariance @ direction)) / distance  # of one of them
    n = float(weights.sum() ** 2 / (weights**2).sum())
    # from as far before the one mean to as far behind the other as they are apart
    grid = np.linspace(-1.0, 2.0, 65)
    width = max(spread * n**-0.2, grid[1] - grid[0])
    density = _smoothed(places, weights / weights.sum(), grid, width)
    inside = np.flatnonzero((grid > 0.0) & (grid < 1.0))
    valley = int(inside[density[inside].argmin()])
    peak = float(min(density[: valley + 1].max(), density[valley:].max()))
    n_there = n * peak * 2 * np.sqrt(np.pi) * width  # rows that the height of the peak rests on
    return float(density[valley]) < peak * (VALLEY_SHARE - 1.0 / np.sqrt(max(n_there, 1.0)))


def _smoothed(places: F64, weights: F64, grid: F64, width: float) -> NDArray[np.float64]:
    """A kernel density of the places: counted finely first, then smoothed by a Gaussian of this width."""
    span = grid[-1] - grid[0]
    counts, edges = np.histogram(places, bins=6 * len(grid), range=(grid[0] - span, grid[-1] + span), weights=weights)
    centers = 0.5 * (edges[1:] + edges[:-1])
    kernel = np.exp(-0.5 * ((grid[:, None] - centers) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    return np.asarray(kernel @ counts)
