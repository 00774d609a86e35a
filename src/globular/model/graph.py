"""The cluster graph: every cluster's neighbourhood G_c, itself first.

Neighbourhoods come from anywhere: drawn at random (the paper's start), from the distances between centres (exhaustive,
O(C²D)), from hierarchical seeds, or estimated by Eq. 8 from distances that rows had anyway. The estimate needs, for
pairs (c, c̃), the mean distance to c̃ of the rows closest to c; `PairStatistics` holds its sums, and adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Graph: TypeAlias = NDArray[np.int32]
"""(C, G): row c holds c itself and then its G − 1 neighbours, closest first."""

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
