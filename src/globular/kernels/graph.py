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
    sums: Any,  # scratch (C,) float64 zeros, left as zeros
    counts: Any,  # scratch (C,) float64 zeros, left as zeros
    touched: Any,  # scratch (C,) int32
) -> None:
    """G_c = c itself and the clusters of smallest mean distance to the rows closest to c. O(pairs + C · G²).

    Clusters that no row of c has looked at have no estimate; places left over keep old neighbours.
    """
    G = graph.shape[1]
    for c in range(first, last):
        n_touched = 0
        for q in range(starts[c], starts[c + 1]):
            other = second[order[q]]
            if pair_sums[1, order[q]] <= 0:  # rows of weight zero say nothing
                continue
            if counts[other] == 0:
                touched[n_touched] = other
                n_touched += 1
            sums[other] += pair_sums[0, order[q]]
            counts[other] += pair_sums[1, order[q]]
        for k in range(n_touched):
            sums[touched[k]] /= counts[touched[k]]
        n_kept = smallest_means(c, touched, n_touched, sums, new_graph)
        for g in range(G):
            known = n_kept == G
            for k in range(n_kept):
                known |= new_graph[c, k] == graph[c, g]
            if not known:
                new_graph[c, n_kept] = graph[c, g]
                n_kept += 1
        for k in range(n_touched):
            sums[touched[k]] = 0
            counts[touched[k]] = 0


@inline
def smallest_means(c: int, touched: Any, n_touched: int, means: Any, out: Any) -> int:
    """out[c] = c, then the clusters of smallest mean, ascending (ties: lower index); how many there are."""
    G = out.shape[1]
    out[c, 0] = c
    n_kept = 1
    for k in range(n_touched):
        other = touched[k]
        mean = means[other]
        if other == c or (n_kept == G and (G == 1 or mean > means[out[c, G - 1]])):
            continue
        position = n_kept
        while position > 1:
            rival = out[c, position - 1]
            if not (mean < means[rival] or (mean == means[rival] and other < rival)):
                break
            if position < G:
                out[c, position] = rival
            position -= 1
        if position < G:
            out[c, position] = other
            n_kept = min(n_kept + 1, G)
    return n_kept


@kernel
def diverse_neighbors(
    first: int,  # IN  this call handles the clusters first … last − 1
    last: int,  # IN
    centers: Any,  # IN  (C, D) float64
    candidates: Any,  # IN  (C, M) neighbours by distance, itself first
    new_graph: Any,  # OUT (C, G), G ≤ M
) -> None:
    """Skip neighbours that are closer to a kept one than to c; fill up with the skipped ones. O(C · M · G · D)."""
    G = new_graph.shape[1]
    M = candidates.shape[1]
    for c in range(first, last):
        new_graph[c, 0] = candidates[c, 0]
        n_kept = 1
        for a in range(1, M):
            if n_kept == G:
                break
            other = candidates[c, a]
            own = center_distance(centers, c, other)
            covered = False
            for k in range(1, n_kept):
                covered |= center_distance(centers, new_graph[c, k], other) < own
            if not covered:
                new_graph[c, n_kept] = other
                n_kept += 1
        for a in range(1, M):
            known = n_kept == G
            for k in range(n_kept):
                known |= new_graph[c, k] == candidates[c, a]
            if not known:
                new_graph[c, n_kept] = candidates[c, a]
                n_kept += 1


@inline
def center_distance(centers: Any, a: int, b: int) -> float:
    """‖m_a − m_b‖². O(D)."""
    total = 0.0
    for j in range(centers.shape[1]):
        difference = centers[a, j] - centers[b, j]
        total += difference * difference
    return total
