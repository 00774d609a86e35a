"""Truncated E-steps with one cluster per row: the closest of its cluster's neighbourhood (var-k-means).

Rows are handled in groups by their cluster, so that the rows of a group share candidates, which stay in the first-level
cache. Candidates are compared in the rows' own precision; a row changes its cluster only if float64 agrees that this
is an improvement, so rounding never raises the objective.

What Eq. 8 needs comes out as triples (c, c̃, Σ w d, Σ w): over rows closest to c, their distances to c̃. All rows of a
group p share the candidates G_p, so a G × G table per group collects them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import inline, kernel
from globular.kernels.prefetch import prefetch_row
from globular.kernels.random import random_cluster, random_outside
from globular.kernels.rows import fetch, quick_distance, squared_distance

AHEAD = 4
"""How many rows ahead memory is asked for."""
HORIZON = 2.25
"""Squared: a random candidate half as far again as the farthest neighbour is none, and its pair is not listed."""


@kernel
def search_neighborhoods(
    rows: Any,  # IN
    places: Any,  # IN  (n,) where in `rows` the rows of this call lie, grouped by their cluster
    order: Any,  # IN  (n,) their numbers in the shard
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    starts: Any,  # IN  (C + 1,) where each group begins, counted over all calls
    first: int,  # IN  this call handles the groups first … last − 1
    last: int,  # IN
    graph: Any,  # IN  (C, G) neighbours of every cluster, itself first
    quick: Any,  # IN  (C, D) centres in the rows' dtype
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) ‖m‖² float64
    n_random: int,  # IN  random candidates per row
    seed: Any,  # IN  uint64 of this iteration
    first_row: int,  # IN  global number of row 0
    labels: Any,  # OUT (N,)
    pairs: Any,  # OUT (2, ·) int32: c and c̃ of the triples; width 0 when no estimates are wanted
    pair_sums: Any,  # OUT (2, ·) float32: Σ w d and Σ w
    d: Any,  # scratch (G,) rows' dtype
    table: Any,  # scratch (G, G + 1) float64: Σ w d by winner and candidate, Σ w by winner
) -> tuple[float, int, int]:
    """C′ = 1: the closest of the group's neighbours and of `n_random` others. O(rows · (G + n_random) · D).

    Returns Σ w d², the number of distances and the number of triples.
    """
    n_clusters, G = graph.shape
    objective, n_distances, n_pairs = 0.0, 0, 0
    estimate = pairs.shape[1] > 0
    base = starts[first]
    for p in range(first, last):
        table[:, :] = 0
        for k in range(starts[p] - base, starts[p + 1] - base):
            i, r = order[k], places[k]
            if k + AHEAD < order.shape[0]:
                fetch(rows, places[k + AHEAD])
                if n_random:
                    prefetch_row(quick, random_cluster(seed, first_row + order[k + AHEAD], 0, n_clusters))
            scale = scales[i] if scales.shape[0] else 1.0
            weight = weights[i] if weights.shape[0] else 1.0
            winner, farthest = 0, 0
            for g in range(G):
                d[g] = quick_distance(rows, r, scale, quick, graph[p, g], norms)
                if d[g] < d[winner]:
                    winner = g
                if d[g] > d[farthest]:
                    farthest = g
            horizon = HORIZON * np.float64(d[farthest])
            closest = squared_distance(rows, r, scale, centers, graph[p, winner], norms)
            if winner != 0:  # only if float64 agrees
                stay = squared_distance(rows, r, scale, centers, p, norms)
                if stay <= closest:
                    closest, winner = stay, 0
            label = graph[p, winner]
            n_distances += G
            for t in range(n_random):
                other = random_outside(seed, first_row + i, t, graph, p)
                if other < 0:
                    continue
                n_distances += 1
                distance = np.float64(quick_distance(rows, r, scale, quick, other, norms))
                if distance < closest:
                    distance = squared_distance(rows, r, scale, centers, other, norms)
                if estimate and distance < horizon:
                    # the pair (closest, random); or, when the random one wins, (winner, former closest)
                    pairs[0, n_pairs] = other if distance < closest else label
                    pairs[1, n_pairs] = label if distance < closest else other
                    pair_sums[0, n_pairs] = weight * np.sqrt(max(distance, closest))
                    pair_sums[1, n_pairs] = weight
                    n_pairs += 1
                if distance < closest:
                    closest, label = distance, other
            labels[i] = label
            objective += weight * closest
            if estimate and label == graph[p, winner]:
                table[winner, G] += weight
                for g in range(G):
                    table[winner, g] += weight * np.sqrt(d[g])
        if estimate:
            n_pairs = flush_table(p, graph, table, pairs, pair_sums, n_pairs)
    return objective, n_distances, n_pairs


@kernel
def search_few_columns(
    rows: Any,  # IN  (array,): dense rows of few columns
    places: Any,  # IN  as in `search_neighborhoods`, like all that follows
    order: Any,  # IN
    weights: Any,  # IN
    scales: Any,  # IN
    starts: Any,  # IN
    first: int,  # IN
    last: int,  # IN
    graph: Any,  # IN
    quick: Any,  # IN
    centers: Any,  # IN
    n_random: int,  # IN
    seed: Any,  # IN
    first_row: int,  # IN
    labels: Any,  # OUT
    pairs: Any,  # OUT
    pair_sums: Any,  # OUT
    table: Any,  # scratch (G, G + 1) float64
    x: Any,  # scratch (D, B) rows' dtype: B rows of a group, columns first
    d: Any,  # scratch (G·B,) rows' dtype
    best: Any,  # scratch (B,) rows' dtype
    farthest: Any,  # scratch (B,) rows' dtype
    winner: Any,  # scratch (B,) int32
    exact: Any,  # scratch (B,) float64
    weight: Any,  # scratch (B,) float64
    new_label: Any,  # scratch (B,) int32
) -> tuple[float, int, int]:
    """`search_neighborhoods` for few columns: vectorised over the rows of a group instead of over the columns.

    What happens to every row runs in vectors; what happens to few (leaving the group, a random candidate that is near)
    is left to loops over those.
    """
    G = graph.shape[1]
    B = x.shape[1]
    objective, n_distances, n_pairs = 0.0, 0, 0
    estimate = pairs.shape[1] > 0
    base = starts[first]
    for p in range(first, last):
        table[:, :] = 0
        for begin in range(starts[p] - base, starts[p + 1] - base, B):
            m = min(B, starts[p + 1] - base - begin)
            load_columns(rows[0], places, order, scales, weights, begin, m, x, weight)
            compare_neighbors(x, m, quick, graph, p, d, best, farthest, winner)
            n_distances += m * G
            own_columns(x, m, centers, p, exact, new_label)
            for k in range(m):
                if winner[k] != 0:  # only if float64 agrees
                    distance = column_distance(x, k, centers, graph[p, winner[k]])
                    if distance < exact[k]:
                        exact[k] = distance
                        new_label[k] = graph[p, winner[k]]
                    else:
                        winner[k] = 0
            for t in range(n_random):
                nearer_randoms(x, m, quick, seed, first_row, order, begin, t, best)
                for k in range(m):
                    # all neighbours are nearer than this: what is beyond is no neighbour, and of no use as one
                    if best[k] > HORIZON * farthest[k]:
                        n_distances += 1
                        continue
                    other = random_outside(seed, first_row + order[begin + k], t, graph, p)
                    if other < 0:
                        continue
                    n_distances += 1
                    distance = column_distance(x, k, centers, other)
                    if estimate and distance < HORIZON * farthest[k]:
                        wins = distance < exact[k]
                        pairs[0, n_pairs] = other if wins else new_label[k]
                        pairs[1, n_pairs] = new_label[k] if wins else other
                        pair_sums[0, n_pairs] = weight[k] * np.sqrt(np.float32(max(distance, exact[k])))
                        pair_sums[1, n_pairs] = weight[k]
                        n_pairs += 1
                    if distance < exact[k]:
                        exact[k] = distance
                        new_label[k] = other
            if estimate:
                add_to_table(d, m, graph, p, weight, winner, new_label, table)
            for k in range(m):
                objective += weight[k] * exact[k]
                labels[order[begin + k]] = new_label[k]
        if estimate:
            n_pairs = flush_table(p, graph, table, pairs, pair_sums, n_pairs)
    return objective, n_distances, n_pairs


@inline
def load_columns(
    matrix: Any, places: Any, order: Any, scales: Any, weights: Any, begin: int, m: int, x: Any, weight: Any
) -> None:
    """x[:, k] = the k-th row of a batch as the passes see it, and its weight. O(m · D)."""
    for j in range(x.shape[0]):
        for k in range(m):
            x[j, k] = matrix[places[begin + k], j]
    if scales.shape[0]:
        for k in range(m):
            scale = x.dtype.type(scales[order[begin + k]])
            for j in range(x.shape[0]):
                x[j, k] *= scale
    for k in range(m):
        weight[k] = weights[order[begin + k]] if weights.shape[0] else 1.0


@inline
def compare_neighbors(
    x: Any, m: int, quick: Any, graph: Any, p: int, d: Any, best: Any, farthest: Any, winner: Any
) -> None:
    """Squared distances to all of G_p, the closest and the farthest of it. O(m · G · D)."""
    distances_of_columns(x, m, quick, p, d, 0)
    for k in range(m):
        winner[k] = 0
        best[k] = d[k]
        farthest[k] = d[k]
    for g in range(1, graph.shape[1]):
        at, name = g * m, np.int32(g)
        distances_of_columns(x, m, quick, graph[p, g], d, at)
        for k in range(m):
            value = d[at + k]
            winner[k] = name if value < best[k] else winner[k]
            best[k] = value if value < best[k] else best[k]
            farthest[k] = value if value > farthest[k] else farthest[k]


@inline
def own_columns(x: Any, m: int, centers: Any, p: int, exact: Any, new_label: Any) -> None:
    """exact[k] = ‖x[:, k] − m_p‖² in float64: what a row has if it stays. O(m · D)."""
    for k in range(m):
        exact[k] = 0.0
        new_label[k] = p
    for j in range(x.shape[0]):
        center = centers[p, j]
        for k in range(m):
            difference = x[j, k] - center
            exact[k] += difference * difference


@inline
def nearer_randoms(
    x: Any, m: int, quick: Any, seed: Any, first_row: int, order: Any, begin: int, t: int, near: Any
) -> None:
    """near[k] = squared distance to the first draw of random candidate t, in the rows' own precision. O(m · D)."""
    n_clusters = quick.shape[0]
    for k in range(m):
        other = random_cluster(seed, first_row + order[begin + k], 4 * t, n_clusters)
        total = x.dtype.type(0)
        for j in range(x.shape[0]):
            difference = x[j, k] - quick[other, j]
            total += difference * difference
        near[k] = total


@inline
def add_to_table(d: Any, m: int, graph: Any, p: int, weight: Any, winner: Any, new_label: Any, table: Any) -> None:
    """Σ w d by winner and candidate, for rows that have not left for a random cluster. O(m · G)."""
    G = graph.shape[1]
    for q in range(G * m):
        d[q] = np.sqrt(d[q])
    stayed = 0.0
    for k in range(m):
        stayed += weight[k] if new_label[k] == p else 0.0
    table[0, G] += stayed
    for g in range(G):
        total = 0.0
        for k in range(m):
            total += weight[k] * d[g * m + k] if new_label[k] == p else 0.0
        table[0, g] += total
    for k in range(m):
        if winner[k] != 0 and new_label[k] == graph[p, winner[k]]:
            table[winner[k], G] += weight[k]
            for g in range(G):
                table[winner[k], g] += weight[k] * d[g * m + k]


@inline
def distances_of_columns(x: Any, m: int, centers: Any, c: int, d: Any, at: int) -> None:
    """d[at + k] = ‖x[:, k] − m_c‖² for k < m, vectorised over k; the first two columns in one go. O(m · D)."""
    D = x.shape[0]
    if D == 1:
        a = centers[c, 0]
        for k in range(m):
            first = x[0, k] - a
            d[at + k] = first * first
        return
    a, b = centers[c, 0], centers[c, 1]
    for k in range(m):
        first, second = x[0, k] - a, x[1, k] - b
        d[at + k] = first * first + second * second
    for j in range(2, D):
        a = centers[c, j]
        for k in range(m):
            first = x[j, k] - a
            d[at + k] += first * first


@inline
def column_distance(x: Any, k: int, centers: Any, c: int) -> float:
    """‖x[:, k] − m_c‖² in float64. O(D)."""
    total = 0.0
    for j in range(x.shape[0]):
        difference = x[j, k] - centers[c, j]
        total += difference * difference
    return total


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
