"""Sums over pairs of clusters in a small hash table, for the estimates of neighbourhoods (Eq. 8)."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline
from globular.model.random import GOLDEN


@inline
def collect_pairs(
    closest: Any, n_clusters: int, weight: float, by_distance: bool, seen: Any, seen_costs: Any, n_seen: int, keys: Any,
    pair_sums: Any,
) -> int:  # fmt: skip
    """Add what one row says about its closest cluster and the others it has seen; returns how many are new."""
    n_new = 0
    for s in range(n_seen):
        if seen[s] != closest:
            value = np.float64(seen_costs[s])
            value = np.sqrt(max(value, 0.0)) if by_distance else value
            n_new += collect_pair(np.int64(closest) * n_clusters + seen[s], weight, value, keys, pair_sums)
    return n_new


@inline
def collect_pair(key: Any, weight: float, value: float, keys: Any, pair_sums: Any) -> Any:
    """Add to the sums of a pair in the hash table; returns 1 if it is a new one. O(1)."""
    last = keys.shape[0] - 1
    slot = np.int64((np.uint64(key) * GOLDEN) >> np.uint64(32)) & last
    while keys[slot] != key and keys[slot] >= 0:
        slot = (slot + 1) & last
    is_new = keys[slot] < 0
    if is_new:
        keys[slot] = key
        pair_sums[slot, 0] = 0.0
        pair_sums[slot, 1] = 0.0
    pair_sums[slot, 0] += weight * value
    pair_sums[slot, 1] += weight
    return np.int64(is_new)


@inline
def drain_pairs(n_clusters: int, keys: Any, pair_sums: Any, pairs: Any, sums: Any, n: int) -> None:
    """Move the hash table's entries into triples, in table order, from triple n on. O(H)."""
    for slot in range(keys.shape[0]):
        if keys[slot] >= 0:
            pairs[0, n], pairs[1, n] = keys[slot] // n_clusters, keys[slot] % n_clusters
            sums[0, n], sums[1, n] = pair_sums[slot, 0], pair_sums[slot, 1]
            keys[slot] = -1
            n += 1
