"""Alg. 5 of Newling & Fleuret (2016) line by line: the oracle of `nested_pass` and of the algorithm around it.

Every distance is computed, every bound kept in float64; S, v and sse are updated row by row as the paper prints it.
Rows are dense float64 in the order in which batches take them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from globular.model.statistics import F64, I64
from reference.assign import closest_centers, squared_distances


@dataclass(slots=True)
class NestedState:
    """Where Alg. 5 stands after an iteration."""

    centers: F64
    labels: I64
    """a(i), −1 for rows beyond the batch."""
    lower: F64
    """l(i, j), (N, k); rows beyond the batch have zeros. Valid for the centres that the iteration began with."""
    S: F64
    v: F64
    sse: F64
    batch_size: int
    next_size: int
    n_distances: int
    n_changed: int


def nmbatch(
    rows: F64, centers: F64, b0: int, rho: float, n_iter: int, *, together: bool = False
) -> Iterator[NestedState]:
    """Nested mini-batch k-means; Alg. 2's votes of the starting centres are left out, as in the package."""
    N, k = len(rows), len(centers)
    S, v, sse = np.zeros_like(centers), np.zeros(k), np.zeros(k)
    labels, distances, lower = np.full(N, -1), np.zeros(N), np.zeros((N, k))
    p, old_size, size = np.zeros(k), 0, min(b0, N)
    for _ in range(n_iter):
        before, n_distances = labels.copy(), 0
        lower[:old_size] -= p  # line 10
        for i in range(old_size):  # lines 12–20
            a = labels[i]
            sse[a] -= distances[i] ** 2
            S[a] -= rows[i]
            v[a] -= 1
            n_distances += assignment_with_bounds(i, rows, centers, labels, distances, lower)
        if size > old_size:  # lines 21–26
            exact = np.sqrt(squared_distances(rows[old_size:size], centers))
            lower[old_size:size] = exact
            labels[old_size:size] = closest_centers(rows[old_size:size], centers)
            distances[old_size:size] = exact[np.arange(size - old_size), labels[old_size:size]]
            n_distances += exact.size
        for i in range(size):  # lines 18, 19, 27, 28
            S[labels[i]] += rows[i]
            v[labels[i]] += 1
            sse[labels[i]] += distances[i] ** 2
        moved = np.where(v[:, None] > 0, S / np.maximum(v, 1)[:, None], centers)
        p = np.linalg.norm(moved - centers, axis=1)
        ratio = mean_ratio(sse, v, p) if together else smallest_ratio(sse, v, p)
        grown = min(2 * size, N) if ratio > rho else size
        n_changed = int(np.sum(labels != before))
        yield NestedState(
            moved, labels.copy(), lower.copy(), S.copy(), v.copy(), sse.copy(), size, grown, n_distances, n_changed
        )
        centers, old_size, size = moved, size, grown


def assignment_with_bounds(i: int, rows: F64, centers: F64, labels: I64, distances: F64, lower: F64) -> int:
    """Alg. 1; returns the distances it took. Ties are searched, so that they go to the lowest index."""
    distances[i] = np.linalg.norm(rows[i] - centers[labels[i]])
    n_distances = 1
    for j in range(len(centers)):
        if j != labels[i] and lower[i, j] <= distances[i]:
            lower[i, j] = np.linalg.norm(rows[i] - centers[j])
            n_distances += 1
            if (lower[i, j], j) < (distances[i], labels[i]):
                lower[i, labels[i]] = distances[i]
                labels[i], distances[i] = j, lower[i, j]
    return n_distances


def smallest_ratio(sse: F64, v: F64, p: F64) -> float:
    """min_j σ̂_C(j) / p(j) of lines 31 and 36; clusters that stand still or have no σ̂ do not hold the batch back."""
    counted = (v > 1) & (p > 0)
    sigma = np.sqrt(sse[counted] / (v[counted] * (v[counted] - 1)))
    return float(np.min(sigma / p[counted], initial=np.inf))


def mean_ratio(sse: F64, v: F64, p: F64) -> float:
    """√(Σ_j v(j) σ̂_C(j)² / Σ_j v(j) p(j)²) over the clusters that have a σ̂."""
    variance, movement = 0.0, 0.0
    for j in np.flatnonzero(v > 1):
        variance += v[j] * sse[j] / (v[j] * (v[j] - 1))
        movement += v[j] * p[j] ** 2
    return float(np.sqrt(variance / movement)) if movement > 0 else np.inf
