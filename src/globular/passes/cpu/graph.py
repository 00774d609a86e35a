"""The cluster graph by Eq. 8: from distances that rows had anyway."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, Scratch, Zeros, inline, kernel, new_queue, share_kernel, take_number
from globular.passes.cpu.engine.group import group_by
from globular.passes.host import HostShard
from globular.seam.center_passes import EstimateNeighbors
from globular.seam.passes import Labels

_CLUSTERS_PER_BLOCK = 64
"""Clusters whose neighbourhoods are estimated in one go."""


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


@HostShard.implements(EstimateNeighbors)
def estimate_neighbors(shard: HostShard, work: EstimateNeighbors) -> Labels:
    """O(pairs + C·G²)."""
    graph, (first, second), C, n_threads = work.graph, work.pairs.pairs, len(work.graph), shard.n_threads
    starts, order = group_by(first, C, n_threads)
    new_graph, queue = np.empty_like(graph), new_queue()
    most = int(np.diff(starts).max())

    def estimate() -> None:
        neighbors_from_pairs(
            queue, _CLUSTERS_PER_BLOCK, graph, order, starts, second, work.pairs.sums, new_graph,
            np.zeros(C, dtype=np.int32), np.empty(most, dtype=np.int32), np.empty(most), np.empty(most),
        )  # fmt: skip

    share_kernel(estimate, queue, min(n_threads, -(-C // _CLUSTERS_PER_BLOCK)), calls_blas=False)
    return new_graph
