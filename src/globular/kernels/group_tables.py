"""What Eq. 8 needs of rows in groups by their cluster: triples (c, c̃, Σ w d, Σ w).

They are sums over rows closest to c, of their distances to c̃. All rows of a group p share the candidates G_p, so a
G × G table per group collects them; random candidates are written one by one. A batch of rows of few columns
(`few_columns.Batch`) is added at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline

HORIZON = 2.25
"""Squared: a random candidate half as far again as the farthest neighbour is none, and its pair is not listed."""


@inline
def write_pair(
    label: int, other: int, wins: bool, weight: float, distance: float, pairs: Any, pair_sums: Any, n: int
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


@inline
def add_groups(
    batch: Any, m: int, width: int, begin: int, at: int, last: int, starts: Any, graph: Any, table: Any, pairs: Any,
    pair_sums: Any, n_pairs: int,
) -> int:  # fmt: skip
    """Add the rows of groups `at` to `last` to the table, which each complete group leaves as triples. O(m · G).

    Returns the new number of triples.
    """
    root_distances(batch, width)
    end = 0
    for p in range(at, last + 1):
        k, end = end, min(m, starts[p + 1] - begin)
        add_to_table(batch, k, end, graph, p, table)
        if starts[p + 1] == begin + end:  # the group is complete
            n_pairs = flush_table(p, graph, table, pairs, pair_sums, n_pairs)
            table[:, :] = 0
    return n_pairs


@inline
def root_distances(batch: Any, width: int) -> None:
    """Distances instead of their squares. O(width · G)."""
    d = batch.d
    for g in range(d.shape[0]):
        for k in range(width):
            d[g, k] = np.sqrt(d[g, k])


@inline
def add_to_table(batch: Any, begin: int, end: int, graph: Any, p: int, table: Any) -> None:
    """Σ w d by winner and candidate over rows of group p that have not left for a random cluster. O(rows · G)."""
    d, weight, winner, label = batch.d, batch.weight, batch.winner, batch.label
    G = graph.shape[1]
    first, last = np.uint64(begin), np.uint64(end)
    stayed = 0.0
    for k in range(first, last):
        stayed += weight[k] if label[k] == p else 0.0
    table[0, G] += stayed
    for g in range(1, G):
        total = 0.0
        for k in range(first, last):
            total += weight[k] * d[g, k] if label[k] == p else 0.0
        table[0, g] += total
    for k in range(first, last):
        if winner[k] != 0 and label[k] == graph[p, winner[k]]:
            table[winner[k], G] += weight[k]
            for g in range(G):
                table[winner[k], g] += weight[k] * d[g, k]
