"""What Eq. 8 needs of rows in groups by their cluster: triples (c, c̃, Σ w d, Σ w).

They are sums over rows closest to c, of their distances to c̃. All rows of a group p share the candidates G_p, so a
G × G table per group collects them; random candidates are written one by one.
"""

from __future__ import annotations

from typing import Any

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
