"""Neighbourhoods of clusters from the distances that rows had anyway (Eq. 8)."""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import inline, kernel


@kernel
def neighbors_from_pairs(
    first: int,  # IN  this call handles the clusters first … last − 1
    last: int,  # IN
    graph: Any,  # IN  (C, G) the old neighbourhoods
    order: Any,  # IN  (pairs,) triples grouped by their first cluster
    starts: Any,  # IN  (C + 1,)
    second: Any,  # IN  (pairs,) c̃
    pair_sums: Any,  # IN  (2, pairs) Σ w d, Σ w
    new_graph: Any,  # OUT (C, G)
    slots: Any,  # scratch (C,) int32 zeros, left as zeros: 1 + where a cluster stands among those met
    met: Any,  # scratch, int32: as many as any cluster has triples, like the next two
    means: Any,  # scratch, float64
    counts: Any,  # scratch, float64
) -> None:
    """G_c = c itself and the clusters of smallest mean distance to the rows closest to c. O(pairs + C · G²).

    Clusters that no row of c has looked at have no estimate; places left over keep old neighbours.
    """
    G = graph.shape[1]
    for c in range(first, last):
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
