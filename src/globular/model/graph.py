"""The cluster graph: every cluster's neighbourhood G_c, itself first.

Neighbourhoods come from anywhere: drawn at random (the paper's start), from the distances between centres (exhaustive,
O(C²D)), from hierarchical seeds, or estimated by Eq. 8 from distances that rows had anyway. The estimate needs, for
pairs (c, c̃), the mean distance to c̃ of the rows closest to c; `PairStatistics` holds its sums, and adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, Zeros, inline, kernel, new_queue, share_kernel, take_number
from globular.model.groups import group_by
from globular.model.statistics import PairStatistics

Graph: TypeAlias = NDArray[np.int32]
"""(C, G): row c holds c itself and then its G − 1 neighbours, closest first."""

_CLUSTERS_PER_BLOCK = 64
"""Clusters whose neighbourhoods are estimated in one go."""
_MANY_REPETITIONS = 8
"""Where G² is more than this multiple of the clusters, a random row without a repetition would not come for ages."""


@dataclass(frozen=True, slots=True)
class Search:
    """How a truncated E-step searches (Forster & Lücke 2018); G is the width of the graph that goes with it."""

    n_candidates: int
    """C′, the clusters that each row keeps."""
    n_random: int
    """Clusters drawn at random per row, beside the neighbourhoods: the "+1" of the paper's tables."""
    seed: int
    """Seed of the random clusters, below 2⁶³; a new one for every E-step."""
    estimate: bool
    """Whether to collect the pair statistics of Eq. 8."""


def random_graph(n_clusters: int, n_neighbors: int, rng: np.random.Generator) -> Graph:
    """Each cluster with n_neighbors − 1 distinct others drawn at random."""
    G = min(n_neighbors, n_clusters)
    graph = np.empty((n_clusters, G), dtype=np.int32)
    graph[:, 0] = np.arange(n_clusters)
    if n_clusters <= 4 * G:
        for c in range(n_clusters):
            graph[c, 1:] = rng.permutation(np.delete(np.arange(n_clusters), c))[: G - 1]
        return graph
    if _MANY_REPETITIONS * n_clusters < G * G:
        for c in range(n_clusters):
            others = rng.choice(n_clusters - 1, size=G - 1, replace=False)
            graph[c, 1:] = others + (others >= c)
        return graph
    graph[:, 1:] = rng.integers(n_clusters, size=(n_clusters, G - 1))
    while True:  # few rows have a repetition: draw those anew
        ordered = np.sort(graph, axis=1)
        bad = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if len(bad) == 0:
            return graph
        graph[bad, 1:] = rng.integers(n_clusters, size=(len(bad), G - 1))


def estimated_graph(graph: Graph, statistics: PairStatistics, n_threads: int) -> Graph:
    """Neighbourhoods by Eq. 8; where there is no estimate old neighbours stay. O(pairs + C·G²)."""
    C = len(graph)
    starts, order = group_by(statistics.pairs[0], C, n_threads)
    new_graph, queue = np.empty_like(graph), new_queue()
    most = int(np.diff(starts).max())

    def estimate() -> None:
        neighbors_from_pairs(
            queue, _CLUSTERS_PER_BLOCK, graph, order, starts, statistics.pairs[1], statistics.sums, new_graph,
            np.zeros(C, dtype=np.int32), np.empty(most, dtype=np.int32), np.empty(most), np.empty(most),
        )  # fmt: skip

    share_kernel(estimate, queue, min(n_threads, -(-C // _CLUSTERS_PER_BLOCK)), calls_blas=False)
    return new_graph


def introduce(graph: Graph, newcomers: Sequence[tuple[int, int]]) -> Graph:
    """Make clusters that have moved known at their new place: pairs of a cluster and one whose rows shall look at it.

    The newcomer takes over the other's neighbours, and the last of the other's places. O(newcomers · G).
    """
    G = graph.shape[1]
    if not newcomers or G == 1:
        return graph
    graph = graph.copy()
    guests: dict[int, list[int]] = {}
    for cluster, host in newcomers:
        others = [host, *graph[host, 1:].tolist(), *graph[cluster, 1:].tolist()]
        graph[cluster, 1:] = list(dict.fromkeys(c for c in others if c != cluster))[: G - 1]
        guests.setdefault(host, []).append(cluster)
    for host, arrived in guests.items():
        stay = [c for c in graph[host, 1:].tolist() if c not in arrived]
        graph[host, 1:] = [*stay[: max(0, G - 1 - len(arrived))], *arrived][: G - 1]
    return graph


@kernel
def neighbors_from_pairs(
    queue: Queue,  # IN/OUT blocks
    size: int,  # IN  clusters of a block
    graph: Any,  # IN  (C, G) the old neighbourhoods
    order: Any,  # IN  (pairs,) triples grouped by their first cluster
    starts: Any,  # IN  (C + 1,)
    second: Any,  # IN  (pairs,) c̃
    pair_sums: Any,  # IN  (2, pairs) Σ w d, Σ w
    new_graph: Any,  # OUT (C, G)
    slots: Zeros,  # scratch (C,) int32 zeros, left as zeros: 1 + where a cluster stands among those met
    met: Scratch,  # scratch, int32: as many as any cluster has triples, like the next two
    means: Scratch,  # scratch, float64
    counts: Scratch,  # scratch, float64
) -> None:
    """G_c = c itself and the clusters of smallest mean distance to the rows closest to c. O(pairs + C · G²).

    Clusters that no row of c has looked at have no estimate; places left over keep old neighbours.
    """
    C, G = graph.shape
    first = size * take_number(queue)
    while first < C:
        for c in range(first, min(first + size, C)):
            n_met = 0
            for q in range(starts[c], starts[c + 1]):
                other, count = second[order[q]], pair_sums[1, order[q]]
                if count <= 0:  # rows of weight zero say nothing
                    continue
                if slots[other] == 0:
                    met[n_met], means[n_met], counts[n_met] = other, 0.0, 0.0
                    n_met += 1
                    slots[other] = n_met
                k = slots[other] - 1
                means[k] += pair_sums[0, order[q]]
                counts[k] += count
            for k in range(n_met):
                means[k] /= counts[k]
            n_kept = smallest_means(c, met, n_met, slots, means, new_graph)
            for g in range(G):
                if n_kept == G:
                    break
                known = False
                for k in range(n_kept):
                    known |= new_graph[c, k] == graph[c, g]
                if not known:
                    new_graph[c, n_kept] = graph[c, g]
                    n_kept += 1
            for k in range(n_met):
                slots[met[k]] = 0
        first = size * take_number(queue)


@inline
def smallest_means(c: int, met: Any, n_met: int, slots: Any, means: Any, out: Any) -> int:
    """out[c] = c, then the clusters of smallest mean, ascending (ties: lower index); how many there are."""
    G = out.shape[1]
    out[c, 0] = c
    n_kept = 1
    for k in range(n_met):
        other, mean = met[k], means[k]
        if other == c or (n_kept == G and (G == 1 or mean > means[slots[out[c, G - 1]] - 1])):
            continue
        position = n_kept
        while position > 1:
            rival = out[c, position - 1]
            rivals = means[slots[rival] - 1]
            if not (mean < rivals or (mean == rivals and other < rival)):
                break
            if position < G:
                out[c, position] = rival
            position -= 1
        if position < G:
            out[c, position] = other
            n_kept = min(n_kept + 1, G)
    return n_kept
