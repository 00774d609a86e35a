"""Seeds drawn uniformly without replacement, or by weight."""

from __future__ import annotations

import numpy as np

from globular.algorithms.seeding.common import Seeds, repeat_rows
from globular.model.statistics import F64
from globular.seam.passes import Index
from globular.seam.shard import Shard

_BLOCK = 1 << 17


def random(shard: Shard, n_clusters: int, rng: np.random.Generator) -> Seeds:
    """Distinct rows drawn one after the other in proportion to their weight; what they are worth nobody has looked at.

    More rows are drawn only if some of the first ones are equal: their order is one permutation, cut longer and longer.
    """
    yield from ()
    keys_seed = int(rng.integers(2**63))
    n_drawn = n_clusters
    while True:
        rows = shard.take(_draw_in_order(shard, n_drawn, np.random.default_rng(keys_seed)))
        distinct = _first_of_equals(rows)
        if len(distinct) >= n_clusters or n_drawn >= shard.n_rows:
            return repeat_rows(rows[distinct[:n_clusters]], n_clusters)
        n_drawn = min(shard.n_rows, 2 * n_drawn + 16)


def _draw_in_order(shard: Shard, n: int, rng: np.random.Generator) -> Index:
    """The first n rows of a random order in which heavier rows come earlier; rows of weight zero never come.

    Row i arrives after an exponential waiting time of rate w_i: that order is drawing without replacement in
    proportion to the weights [Efraimidis and Spirakis 2006], and needs one pass over the weights in any split.
    """
    arrivals, indices = np.empty(0), np.empty(0, dtype=np.intp)
    for start in range(0, shard.n_rows, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, shard.n_rows))
        weights = shard.take(block, "weights")
        waiting = rng.exponential(size=len(block))
        alive = weights > 0
        arrivals = np.concatenate([arrivals, waiting[alive] / weights[alive]])
        indices = np.concatenate([indices, block[alive]])
        if len(arrivals) > n:
            first = np.argpartition(arrivals, n - 1)[:n]
            arrivals, indices = arrivals[first], indices[first]
    return indices[np.argsort(arrivals, kind="stable")]


def _first_of_equals(rows: F64) -> Index:
    """Positions of the rows that equal no earlier one, ascending."""
    seen: set[int] = set()
    first = []
    for position, row in enumerate(rows + 0.0):  # −0.0 and 0.0 are the same number with different bytes
        digest = hash(row.tobytes())
        if digest not in seen:
            seen.add(digest)
            first.append(position)
    return np.array(first, dtype=np.intp)
