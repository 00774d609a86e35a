"""Truncated E-steps with one cluster per row: the closest of its cluster's neighbourhood (var-k-means).

Rows are handled in groups by their cluster, so that the rows of a group share candidates, which stay in the first-level
cache. Where the columns of a row fill no vector, the candidates are copied columns first, and vectors run along them.
Candidates are compared in the rows' own precision; a row changes its cluster only if float64 agrees that this is an
improvement, so rounding never raises the objective.

What Eq. 8 needs comes out as triples (c, c̃, Σ w d, Σ w): sums over rows closest to c, of their distances to c̃. The
rows of a group share the candidates, so a G × G table collects them; random candidates are written one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, Scratch, inline, kernel, take_number, twin
from globular.jit.memory import prefetch_row
from globular.jit.tiles import distances_to_tile
from globular.kernels.random import random_cluster, random_outside
from globular.kernels.rows import fetch, quick_distance, quick_distances, squared_distance
from globular.kernels.sums import AHEAD

HORIZON = 2.25
"""Squared: a random candidate half as far again as the farthest neighbour is none, and its pair is not listed."""


@kernel
def search_neighborhoods(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T + 1,) task t has the groups tasks[t] … tasks[t + 1] − 1
    room: Any,  # IN  (T,) where the triples of each task begin
    rows: Any,  # IN
    places: Any,  # IN  (N,) where the rows, grouped by their cluster, lie in `rows`
    order: Any,  # IN  (N,) their numbers in the shard
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    starts: Any,  # IN  (C + 1,) where each group begins
    graph: Any,  # IN  (C, G) neighbours of every cluster, itself first
    quick: Any,  # IN  (C, D) centres in the rows' dtype
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) ‖m‖² float64
    n_random: int,  # IN  random candidates per row
    seed: Any,  # IN  uint64 of this iteration
    first_row: int,  # IN  global number of row 0
    labels: Any,  # OUT (N,)
    grouped: Any,  # OUT (N,) a copy of the labels that stays with the groups
    moved: Any,  # OUT (3, N) of rows that change their cluster, from where each task begins: their places in the order
    # of groups, and the clusters that they leave and join
    pairs: Any,  # OUT (2, ·) int32: c and c̃ of the triples; width 0 when no estimates are wanted
    pair_sums: Any,  # OUT (2, ·) float32: Σ w d and Σ w
    objectives: Any,  # OUT (T,) Σ w d²
    numbers: Any,  # OUT (T, 3) distances, triples, and rows that have moved
    tile: Scratch,  # scratch (D, ≥ G) rows' dtype, whole vectors wide; (0, ≥ G) unless columns are few
    d: Scratch,  # scratch (≥ G,) rows' dtype, as wide as the tile
    table: Scratch,  # scratch (G, G + 1) float64: Σ w d by winner and candidate, Σ w by winner
) -> None:
    """C′ = 1: the closest of the group's neighbours and of `n_random` others. O(rows · (G + n_random) · D)."""
    n_clusters, G = graph.shape
    estimate = pairs.shape[1] > 0
    task = take_number(queue)
    while task < tasks.shape[0] - 1:
        base, end = starts[tasks[task]], starts[tasks[task + 1]]
        objective, n_distances, n_pairs, n_moved = 0.0, 0, room[task], base
        for p in range(tasks[task], tasks[task + 1]):
            table[:, :] = 0
            fill_tile(graph, p, quick, tile)
            for k in range(starts[p], starts[p + 1]):
                i, r = order[k], places[k]
                if k + AHEAD < end:
                    fetch(rows, places[k + AHEAD])
                    if n_random:
                        prefetch_row(quick, random_cluster(seed, first_row + order[k + AHEAD], 0, n_clusters))
                scale = scales[i] if scales.shape[0] else 1.0
                weight = weights[i] if weights.shape[0] else 1.0
                winner, closest, farthest = closest_neighbor(rows, r, scale, graph, p, quick, centers, norms, tile, d)
                label, horizon = graph[p, winner], HORIZON * farthest
                n_distances += G
                for t in range(n_random):
                    other = random_outside(seed, first_row + i, t, graph, p)
                    if other < 0:
                        continue
                    n_distances += 1
                    distance = np.float64(quick_distance(rows, r, scale, quick, other, norms))
                    if distance < closest:
                        distance = squared_distance(rows, r, scale, centers, other, norms)
                    wins = distance < closest
                    if estimate:  # written in any case and kept if it is near: a branch here would be a coin toss
                        far = np.sqrt(max(distance, closest))
                        write_pair(label, other, wins, weight, far, pairs, pair_sums, n_pairs)
                        n_pairs += distance < horizon
                    if wins:
                        closest, label = distance, other
                if label != p:
                    labels[i] = grouped[i] = label
                    moved[0, n_moved], moved[1, n_moved], moved[2, n_moved] = k, p, label
                    n_moved += 1
                objective += weight * closest
                if estimate and label == graph[p, winner]:
                    table[winner, G] += weight
                    for g in range(G):
                        table[winner, g] += weight * np.sqrt(d[g])
            if estimate:
                n_pairs = flush_table(p, graph, table, pairs, pair_sums, n_pairs)
        objectives[task] = objective
        numbers[task, 0], numbers[task, 1], numbers[task, 2] = n_distances, n_pairs - room[task], n_moved - base
        task = take_number(queue)


@inline
def closest_neighbor(
    rows: Any, r: int, scale: float, graph: Any, p: int, quick: Any, centers: Any, norms: Any, tile: Any, d: Any
) -> tuple[int, float, float]:
    """Which neighbour of cluster p is closest, its squared distance, and that of the farthest. O(G · D).

    d has all of them, in the rows' dtype but for the cluster's own; another one wins only if float64 agrees.
    """
    closest = squared_distance(rows, r, scale, centers, p, norms)
    neighbor_distances(rows, r, scale, quick, graph, p, norms, tile, d)
    d[0] = closest
    winner, lowest, farthest = 0, d[0], d[0]
    for g in range(1, graph.shape[1]):
        winner = g if d[g] < lowest else winner
        lowest = min(lowest, d[g])
        farthest = max(farthest, d[g])
    if winner != 0:
        distance = squared_distance(rows, r, scale, centers, graph[p, winner], norms)
        if distance < closest:
            closest = distance
        else:
            winner = 0
    return winner, closest, np.float64(farthest)


@inline
def fill_tile(graph: Any, p: int, quick: Any, tile: Any) -> None:
    """The neighbours of cluster p, columns first; the last one is repeated. O(G · D)."""
    G = graph.shape[1]
    for j in range(tile.shape[0]):
        for g in range(tile.shape[1]):
            tile[j, g] = quick[graph[p, min(g, G - 1)], j]


@twin
def neighbor_distances(
    rows: Any, r: int, scale: float, quick: Any, graph: Any, p: int, norms: Any, tile: Any, d: Any
) -> None:
    """d[g] = `quick_distance` to the neighbour graph[p, g], for g ≥ 1. O(G · D) or O(G · nnz)."""
    if tile.shape[0]:
        distances_to_tile(rows[0], r, rows[0].dtype.type(scale), tile, d)
    else:
        quick_distances(rows, r, scale, quick, graph, p, norms, d)


@neighbor_distances.for_csr
def _neighbor_distances(
    rows: Any, r: int, scale: float, quick: Any, graph: Any, p: int, norms: Any, tile: Any, d: Any
) -> None:
    quick_distances(rows, r, scale, quick, graph, p, norms, d)


@inline
def write_pair(
    label: int, other: int, wins: Any, weight: float, distance: float, pairs: Any, pair_sums: Any, n: int
) -> None:
    """The triple (closest, random); or, when the random cluster wins, (winner, former closest)."""
    pairs[0, n] = other if wins else label
    pairs[1, n] = label if wins else other
    pair_sums[0, n] = weight * distance
    pair_sums[1, n] = weight


@inline
def flush_table(p: int, graph: Any, table: Any, pairs: Any, pair_sums: Any, n_pairs: int) -> int:
    """Write the table of group p as triples; returns their new number. O(G²)."""
    G = graph.shape[1]
    for a in range(G):
        if table[a, G] <= 0:
            continue
        for b in range(G):
            if b != a:
                pairs[0, n_pairs], pairs[1, n_pairs] = graph[p, a], graph[p, b]
                pair_sums[0, n_pairs], pair_sums[1, n_pairs] = table[a, b], table[a, G]
                n_pairs += 1
    return n_pairs
