"""Algorithms 1 and 2 of Forster & Lücke 2018 as they are printed, whole runs in plain NumPy: a witness of the reports.

What the paper leaves open is chosen as in the library: σ² at first is that of the closest clusters in the first E-step,
neighbours that Eq. 8 knows nothing of stay what they were (at first: random ones), an empty cluster keeps its mean,
and random clusters are hashes of (seed, row, draw), so that both can be compared run by run.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from globular.model.graph import Graph, random_graph
from globular.model.statistics import F64
from reference.neighbors import ATTEMPTS

Clusters = NDArray[np.int64]
"""A set of clusters for every row, (N, M); −1 where there is none."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """An E-step and an M-step."""

    centers: F64
    """After the M-step."""
    variance: float
    """σ² after the M-step, Eq. 4; NaN for k-means."""
    objective: float
    """Before the M-step: Σ d² for k-means, the free energy of Eq. 10 for mixtures."""
    n_distances: int


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Alg. 1 (`exhaustive`) or Alg. 2; hard votes are k-means with C′ = 1."""

    C_prime: int
    G: int
    exhaustive: bool = False
    soft: bool = True
    n_random: int = 0
    n_warmup: int = 0
    """E-steps before the first M-step."""

    def run(self, rows: F64, centers: F64, rng: np.random.Generator, n_iter: int) -> Iterator[Iteration]:
        """The iterations from random K(n) (Alg. 1) or random G(n) (Alg. 2)."""
        C, variance = len(centers), np.nan
        own = random_clusters(_next(rng), np.full(len(rows), 63), C)[:, None]
        if self.exhaustive:
            kept = with_random(own, self.C_prime - 1, _next(rng) if self.C_prime > 1 else 0, C)
        else:
            graph = random_graph(C, self.G, rng)
        for t in range(self.n_warmup + n_iter):
            seed = _next(rng)
            if self.exhaustive:
                graph = nearest(centers, self.G)
            if self.exhaustive or t > 0:
                space = with_random(union(kept, graph), self.n_random, seed, C)
            elif (size := self.C_prime * self.G + self.n_random) < C:
                space = with_random(own, size - 1, seed, C)
            else:
                space = np.tile(np.arange(C), (len(rows), 1))
            d = distances(rows, centers, space)
            kept = closest(space, d, self.C_prime)
            if not self.exhaustive:
                graph = estimated(graph, space, d)
            if t == 0 and self.soft:
                variance = float(np.mean(d.min(axis=1) ** 2)) / rows.shape[1]
            if t >= self.n_warmup:
                made = self._m_step(rows, centers, variance, kept, int((space >= 0).sum()))
                centers, variance = made.centers, made.variance
                yield made

    def _m_step(self, rows: F64, centers: F64, variance: float, kept: Clusters, n_distances: int) -> Iteration:
        """Eq. 4 with the responsibilities of Eq. 5; the objective belongs to the parameters before it."""
        (N, D), C = rows.shape, len(centers)
        d2 = distances(rows, centers, kept) ** 2
        if self.soft:
            joint = -np.log(C) - 0.5 * D * np.log(2 * np.pi * variance) - 0.5 * d2 / variance
            each = np.logaddexp.reduce(joint, axis=1)
            s, objective = np.exp(joint - each[:, None]), float(each.sum())
        else:
            s, objective = np.ones_like(d2), float(d2.sum())
        # Σ over rows and their K(n); what is no cluster has no responsibility
        where = np.where(kept < 0, 0, kept).ravel()
        s = np.where(kept < 0, 0.0, s)
        counts = np.bincount(where, s.ravel(), C)
        sums = np.column_stack([np.bincount(where, (s * rows[:, [j]]).ravel(), C) for j in range(D)])
        new = centers.copy()
        new[counts > 0] = sums[counts > 0] / counts[counts > 0, None]
        if self.soft:
            d2 = np.where(kept < 0, 0.0, distances(rows, new, kept) ** 2)
            variance = float((s * d2).sum()) / (N * D)
        return Iteration(new, variance, objective, n_distances)


def _next(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))


def distances(rows: F64, centers: F64, space: Clusters) -> F64:
    """d of every row to the clusters of its set, infinite where there is none."""
    d = np.empty(space.shape)
    step = max(1, 10**7 // (space.shape[1] * rows.shape[1]))
    for n in range(0, len(rows), step):
        difference = rows[n : n + step, None, :] - centers[space[n : n + step]]
        d[n : n + step] = np.sqrt(np.einsum("nmd,nmd->nm", difference, difference))
    return np.where(space < 0, np.inf, d)


def closest(space: Clusters, d: F64, n: int) -> Clusters:
    """K(n): the n of smallest distance."""
    order = np.argsort(d, axis=1, kind="stable")[:, :n]
    return np.take_along_axis(space, order, axis=1)


def union(kept: Clusters, graph: Graph) -> Clusters:
    """G(n) = ∪ G_c, c ∈ K(n); each cluster once."""
    space = np.where(kept[:, :, None] < 0, -1, graph[kept]).reshape(len(kept), -1).astype(np.int64)
    order = np.argsort(space, axis=1, kind="stable")
    ordered = np.take_along_axis(space, order, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = -1
    np.put_along_axis(space, order, ordered, axis=1)
    return space


def nearest(centers: F64, G: int) -> Graph:
    """G_c of Alg. 1: the G smallest distances between centres, itself first."""
    d = np.linalg.norm(centers[:, None] - centers, axis=2)
    np.fill_diagonal(d, -1.0)
    return np.argsort(d, axis=1, kind="stable")[:, :G].astype(np.int32)


def estimated(graph: Graph, space: Clusters, d: F64) -> Graph:
    """G_c of Alg. 2: the G smallest means of Eq. 8, d_cc = 0; then what was there before."""
    C, G = graph.shape
    c = space[np.arange(len(space)), np.argmin(d, axis=1)]  # c_o of the row, n ∈ I_c
    pairs, inverse = np.unique((c[:, None] * C + space)[space >= 0], return_inverse=True)
    means = np.bincount(inverse, d[space >= 0]) / np.bincount(inverse)
    own, other = pairs // C, pairs % C
    means[own == other] = 0.0
    order = np.lexsort((means, own))
    own, other = own[order], other[order]
    begins = np.searchsorted(own, np.arange(C + 1))
    found = np.empty_like(graph)
    for k in range(C):
        known = other[begins[k] : begins[k + 1]][:G].tolist()
        found[k] = list(dict.fromkeys([k, *known, *graph[k].tolist()]))[:G]
    return found


def with_random(space: Clusters, n: int, seed: int, C: int) -> Clusters:
    """The sets with n clusters more, drawn at random outside them; a few draws may find none."""
    for t in range(n):
        new = np.full(len(space), -1)
        for attempt in range(ATTEMPTS):
            other = random_clusters(seed, np.full(len(space), ATTEMPTS * t + attempt), C)
            free = (new < 0) & ~(space == other[:, None]).any(axis=1)
            new[free] = other[free]
        space = np.column_stack([space, new])
    return space


def random_clusters(seed: int, draws: Clusters, C: int) -> Clusters:
    """`reference.neighbors.random_cluster` for all rows."""
    row = np.arange(len(draws), dtype=np.uint64)
    block, place = draws.astype(np.uint64) // np.uint64(64), draws.astype(np.uint64) % np.uint64(64)
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.uint64(0xBF58476D1CE4E5B9) * block
        z += np.uint64(0x9E3779B97F4A7C15) * (row * np.uint64(64) + place + np.uint64(1))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (((z >> np.uint64(32)) * np.uint64(C)) >> np.uint64(32)).astype(np.int64)
