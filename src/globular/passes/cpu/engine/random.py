"""Random clusters by hashing: the same for a row on any thread and in any split of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.model.random import GOLDEN, MIX1, MIX2
from globular.passes.host import HostShard
from globular.seam.passes import ScatterLabels


@inline
def random_cluster(seed: Any, row: Any, draw: Any, n_clusters: int) -> Any:
    """A cluster drawn by hashing (seed, row, draw): the same on any thread and in any split (splitmix64)."""
    # a row has 64 numbers of a sequence, then of another
    block, place = np.uint64(draw) >> np.uint64(6), np.uint64(draw) & np.uint64(63)
    z = seed + MIX1 * block + GOLDEN * (np.uint64(row) * np.uint64(64) + place + np.uint64(1))
    z = (z ^ (z >> np.uint64(30))) * MIX1
    z = (z ^ (z >> np.uint64(27))) * MIX2
    z = z ^ (z >> np.uint64(31))
    return np.int64(((z >> np.uint64(32)) * np.uint64(n_clusters)) >> np.uint64(32))


@inline
def random_outside(seed: Any, row: int, draw: int, graph: Any, p: int) -> int:
    """A random cluster that is not in the neighbourhood of p; −1 if a few draws find none. O(G)."""
    n_clusters, G = graph.shape
    for attempt in range(4):
        other = random_cluster(seed, row, 4 * draw + attempt, n_clusters)
        known = False
        for g in range(G):
            known |= graph[p, g] == other
        if not known:
            return other
    return -1


@kernel
def random_labels(
    seed: Any,  # IN  uint64
    first_row: int,  # IN  global number of row 0
    n_clusters: int,  # IN
    labels: Any,  # OUT (n,)
) -> None:
    """A random cluster for every row. O(n)."""
    for i in range(labels.shape[0]):
        labels[i] = random_cluster(seed, first_row + i, 63, n_clusters)


@HostShard.implements(ScatterLabels)
def scatter_labels(shard: HostShard, work: ScatterLabels) -> None:
    random_labels(np.uint64(work.seed), shard.first_row, work.n_clusters, shard.labels)
