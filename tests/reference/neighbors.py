"""Truncated E-steps and the estimate of neighbourhoods, row by row: the oracle of `truncated_pass` and its relatives.

Equation numbers are those of Forster & Lücke 2018. Rows are dense float64 as the passes see them, weights have one
entry per row. What Eq. 8 needs is held densely here: for every pair of clusters (c, c̃) the sums over rows closest to c.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph, Search
from globular.model.statistics import F64, HardStatistics, SoftStatistics
from reference.assign import squared_distances
from reference.expect import log_joint, scatter_of

HORIZON = 2.25
"""Squared: a random candidate half as far again as the farthest neighbour is none."""
ATTEMPTS = 4
"""Draws for one random candidate before it is given up, because all of them were in the search space already."""
_MASK = 2**64 - 1


@dataclass(slots=True)
class Pairs:
    """Sums of Eq. 8: entry [c, c̃] over the rows closest to c that looked at c̃."""

    distances: F64
    """Σ w d_c̃, (C, C)."""
    weights: F64
    """Σ w, (C, C)."""

    @classmethod
    def none(cls, C: int) -> "Pairs":
        return cls(np.zeros((C, C)), np.zeros((C, C)))

    def add(self, c: int, other: int, distance: float, weight: float) -> None:
        """One row more; the pair of a cluster with itself says nothing, d(c, c) = 0."""
        if c != other:
            self.distances[c, other] += weight * distance
            self.weights[c, other] += weight


@dataclass(slots=True)
class HardStep:
    """Result of a truncated E-step of k-means."""

    labels: NDArray[np.int32]
    members: NDArray[np.int32]
    """K(n), closest first, (N, C′); −1 where there is none."""
    statistics: HardStatistics
    pairs: Pairs


@dataclass(slots=True)
class SoftStep:
    """Result of a truncated E-step of a mixture."""

    members: NDArray[np.int32]
    responsibilities: F64
    """q(c) of Eq. 5, zero outside K(n), (N, C)."""
    statistics: SoftStatistics
    pairs: Pairs


def random_cluster(seed: int, row: int, draw: int, C: int) -> int:
    """splitmix64 of (seed, row, draw), scaled to 0 … C − 1; 64 draws of a row are of one sequence."""
    z = (seed + 0xBF58476D1CE4E5B9 * (draw // 64) + 0x9E3779B97F4A7C15 * (row * 64 + draw % 64 + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z = z ^ (z >> 31)
    return ((z >> 32) * C) >> 32


def random_outside(search: Search, row: int, draw: int, known: list[int], C: int) -> list[int]:
    """A random candidate that is not in the search space yet; none if a few draws find none."""
    for attempt in range(ATTEMPTS):
        other = random_cluster(search.seed, row, ATTEMPTS * draw + attempt, C)
        if other not in known:
            return [other]
    return []


def starting_members(labels: NDArray[np.int32], graph: Graph, C_prime: int) -> NDArray[np.int32]:
    """K(n) where only the closest cluster is known: the front of its neighbourhood."""
    members = np.full((len(labels), C_prime), -1, dtype=np.int32)
    G = min(C_prime, graph.shape[1])
    members[:, :G] = graph[labels, :G]
    return members


def search_space(members: NDArray[np.int32], graph: Graph, search: Search, row: int) -> list[int]:
    """G(n) = ∪_{c ∈ K(n)} G_c, and `n_random` others; each cluster once."""
    space: list[int] = []
    for c in members[members >= 0]:
        space += [int(other) for other in graph[c] if other not in space]
    for draw in range(search.n_random):
        space += random_outside(search, row, draw, space, len(graph))
    return space


def neighborhood_pass(
    rows: F64, weights: F64, centers: F64, graph: Graph, search: Search, labels: NDArray[np.int32]
) -> HardStep:
    """C′ = 1: the closest of G_p, p the former cluster, and of the random candidates, one after the other."""
    C = len(centers)
    d2 = squared_distances(rows, centers)
    found = np.empty_like(labels)
    pairs = Pairs.none(C)
    n_distances = 0
    for n, p in enumerate(labels):
        neighborhood = [int(c) for c in graph[p]]
        closest = neighborhood[int(np.argmin(d2[n, neighborhood]))]
        n_distances += len(neighborhood)
        best = closest
        for draw in range(search.n_random):
            for other in random_outside(search, n, draw, neighborhood, C):
                n_distances += 1
                # the pair (closest, random), or (winner, former closest) if the random one wins
                near, far = (other, best) if d2[n, other] < d2[n, best] else (best, other)
                if d2[n, other] < HORIZON * d2[n, neighborhood].max():  # Deviation: what is too far is not listed
                    pairs.add(near, far, float(np.sqrt(d2[n, far])), weights[n])
                best = near
        if best == closest:
            for other in neighborhood:
                pairs.add(closest, other, float(np.sqrt(d2[n, other])), weights[n])
        found[n] = best
    statistics = _votes(rows, weights, d2, found, labels, n_distances)
    return HardStep(found, found[:, None].copy(), statistics, pairs)


def candidates_pass(
    rows: F64, weights: F64, centers: F64, graph: Graph, search: Search, labels: NDArray[np.int32],
    members: NDArray[np.int32],
) -> HardStep:  # fmt: skip
    """C′ > 1: K(n) = the C′ closest of G(n); only the closest votes, and the former one if it is as close."""
    d2 = squared_distances(rows, centers)
    kept, pairs, n_distances = _choose(d2, np.sqrt(d2), weights, graph, search, members)
    for n, former in enumerate(labels):
        place = int(np.flatnonzero(kept[n] == former)[0]) if former in kept[n] else -1
        if d2[n, former] <= d2[n, kept[n, 0]]:
            kept[n, place], kept[n, 0] = kept[n, 0], former
    found = kept[:, 0].copy()
    return HardStep(found, kept, _votes(rows, weights, d2, found, labels, n_distances), pairs)


def soft_pass(
    rows: F64, weights: F64, mixture: GaussianParameters, graph: Graph, search: Search, members: NDArray[np.int32]
) -> SoftStep:
    """K(n) = the C′ components of largest p(c, x) in G(n); q ∝ p(c, x) on K(n) (Eq. 5), F of Eq. 10."""
    costs = -2.0 * log_joint(rows, mixture)
    values = costs
    if mixture.family.euclidean:
        # −2σ² log p(c, x) without its constants: the squared distance, and more for components of less weight
        log_weights = np.log(mixture.weights)
        handicaps = 2.0 * mixture.covariances * (log_weights.max() - log_weights)
        values = np.sqrt(squared_distances(rows, mixture.means) + handicaps)
    kept, pairs, n_distances = _choose(costs, values, weights, graph, search, members)
    q, statistics = kept_statistics(rows, weights, mixture, kept, n_distances)
    return SoftStep(kept, q, statistics, pairs)


def kept_statistics(
    rows: F64, weights: F64, mixture: GaussianParameters, kept: NDArray[np.int32], n_distances: int
) -> tuple[F64, SoftStatistics]:
    """q(c) of Eq. 5 for these K(n), zero outside, (N, C), and all that an M-step needs."""
    joint = log_joint(rows, mixture)
    inside = np.zeros(joint.shape, dtype=bool)
    for n, clusters in enumerate(kept):
        inside[n, clusters[clusters >= 0]] = True
    log_terms = np.logaddexp.reduce(np.where(inside, joint, -np.inf), axis=1)
    q = np.where(inside, np.exp(joint - log_terms[:, None]), 0.0)
    votes = weights[:, None] * q
    differences = rows[:, None, :] - mixture.means
    matrices = np.einsum("nc,ncd,nce->cde", votes, differences, differences)
    statistics = SoftStatistics(
        counts=votes.sum(axis=0), sums=np.einsum("nc,ncd->cd", votes, differences),
        scatter=scatter_of(matrices, mixture.family.scatter), log_likelihood=float(weights @ log_terms),
        total_weight=float(weights.sum()), n_distances=n_distances,
    )  # fmt: skip
    return q, statistics


def estimated_graph(graph: Graph, pairs: Pairs) -> Graph:
    """Eq. 8: G_c = c, then the clusters of smallest mean distance to the rows closest to c, then old neighbours."""
    C, G = graph.shape
    found = np.empty_like(graph)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = pairs.distances / pairs.weights
    for c in range(C):
        known = [int(other) for other in np.argsort(means[c], kind="stable") if pairs.weights[c, other] > 0]
        places = [c, *known]
        places += [int(other) for other in graph[c] if other not in places]
        found[c] = places[:G]
    return found


def _choose(
    costs: F64, values: F64, weights: F64, graph: Graph, search: Search, members: NDArray[np.int32]
) -> tuple[NDArray[np.int32], Pairs, int]:
    """K(n) of lowest cost in G(n) (first come, first kept on ties), what Eq. 8 learns, and the number of distances."""
    pairs = Pairs.none(len(graph))
    kept = np.full_like(members, -1)
    n_distances = 0
    for n in range(len(costs)):
        space = search_space(members[n], graph, search, n)
        n_distances += len(space)
        best = [space[k] for k in np.argsort(costs[n, space], kind="stable")][: members.shape[1]]
        kept[n, : len(best)] = best
        for other in space:
            pairs.add(best[0], other, float(values[n, other]), weights[n])
    return kept, pairs, n_distances


def _votes(
    rows: F64, weights: F64, d2: F64, labels: NDArray[np.int32], former: NDArray[np.int32], n_distances: int
) -> HardStatistics:
    """Statistics of hard votes."""
    votes = weights[:, None] * (labels[:, None] == np.arange(d2.shape[1]))
    objective = float(weights @ d2[np.arange(len(rows)), labels])
    return HardStatistics(votes.T @ rows, votes.sum(axis=0), objective, int(np.sum(labels != former)), n_distances)
