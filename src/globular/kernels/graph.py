"""Neighbourhoods of clusters: from the distances that rows had anyway (Eq. 8), and from those between centres."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, Scratch, Zeros, inline, kernel, take_number
from globular.jit.blas import multiply_rows


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


@inline
def load_about(centers: Any, first: int, n: int, origin: int, out: Any, norms: Any) -> None:
    """Centres first … first + n − 1 about the centre `origin`, and the squares of their lengths. O(n · D)."""
    for k in range(n):
        total = 0.0
        for j in range(centers.shape[1]):
            value = centers[first + k, j] - centers[origin, j]
            out[k, j] = value
            total += value * value
        norms[k] = total


@inline
def insert_neighbor(cost: float, other: int, costs: Any, out: Any, i: int) -> None:
    """Put a centre where it belongs among the neighbours found so far, behind those that are as close. O(G)."""
    k = out.shape[1] - 1
    while k > 1 and cost < costs[k - 1]:
        costs[k], out[i, k] = costs[k - 1], out[i, k - 1]
        k -= 1
    costs[k], out[i, k] = cost, other


@kernel
def neighbors_in_cells(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T, 3) a cell, and some of its centres, begin … end − 1
    centers: Any,  # IN  (C, D) float64, in the order of their cells
    starts: Any,  # IN  (cells + 1,)
    adjacent: Any,  # IN  (·,) the cells to look at from each cell, ascending
    bounds: Any,  # IN  (cells + 1,) where those of a cell begin
    own: Scratch,  # scratch (A, D), A no less than the centres of a task
    others: Scratch,  # scratch (B, D)
    norms: Scratch,  # scratch (max(A, B),)
    products: Scratch,  # scratch (A, B)
    costs: Scratch,  # scratch (A, G)
    out: Any,  # OUT (C, G) each centre itself, then the closest of those cells, closest first (ties: lower index)
) -> None:
    """Differences about a centre of the cell, float64: far from zero little cancels. O(C · D · looked at)."""
    B = others.shape[0]
    t = take_number(queue)
    while t < tasks.shape[0]:
        cell, begin, n = tasks[t, 0], tasks[t, 1], tasks[t, 2] - tasks[t, 1]
        load_about(centers, begin, n, starts[cell], own, norms)
        for i in range(n):
            costs[i, 0], out[begin + i, 0] = -np.inf, begin + i
            for k in range(1, out.shape[1]):
                costs[i, k], out[begin + i, k] = np.inf, begin + i
        for a in range(bounds[cell], bounds[cell + 1]):
            stop = starts[adjacent[a] + 1]
            for first in range(starts[adjacent[a]], stop, B):
                m = min(B, stop - first)
                load_about(centers, first, m, starts[cell], others, norms)
                multiply_rows(own, 0, n, others, 0, m, products)
                for i in range(n):
                    for k in range(m):
                        cost = norms[k] - 2.0 * products[i, k]
                        if cost < costs[i, out.shape[1] - 1] and first + k != begin + i:
                            insert_neighbor(cost, first + k, costs[i], out, begin + i)
        t = take_number(queue)
