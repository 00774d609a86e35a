"""Random clusters and orders by hashing: the same for a row on any thread and in any split of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ by the golden ratio: the step of splitmix64, and what Fibonacci hashing multiplies by."""
MIX1 = np.uint64(0xBF58476D1CE4E5B9)
"""The first multiplier of splitmix64."""
MIX2 = np.uint64(0x94D049BB133111EB)
"""The second."""


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


@inline
def shuffled(seed: Any, x: Any, low: Any, high: Any) -> Any:
    """One of 2^(low + high) numbers for another: a Feistel network of two parts, which need not be as wide. O(1)."""
    low_mask, high_mask = (np.uint64(1) << low) - np.uint64(1), (np.uint64(1) << high) - np.uint64(1)
    a, b = x & low_mask, x >> low
    for r in range(0, 6, 2):  # two of six rounds
        z = seed + GOLDEN * (b * np.uint64(6) + np.uint64(r) + np.uint64(1))
        z = (z ^ (z >> np.uint64(30))) * MIX1
        z = (z ^ (z >> np.uint64(27))) * MIX2
        a ^= (z ^ (z >> np.uint64(31))) & low_mask
        z = seed + GOLDEN * (a * np.uint64(6) + np.uint64(r) + np.uint64(2))
        z = (z ^ (z >> np.uint64(30))) * MIX1
        z = (z ^ (z >> np.uint64(27))) * MIX2
        b ^= (z ^ (z >> np.uint64(31))) & high_mask
    return (b << low) | a


@kernel
def random_order(
    seed: Any,  # IN  uint64, names the order
    n: int,  # IN  how many things are ordered
    first: int,  # IN  position of the first one wanted
    bits: int,  # IN  2^bits is at least n; networks of a few bits are not quite fair
    out: Any,  # OUT (m,) what comes at positions first … first + m − 1
) -> None:
    """A part of a random order of 0 … n − 1, from its number alone. O(m).

    A network permutes 2^bits numbers; one that falls beyond n is sent through it again until it does not.
    """
    low = np.uint64(bits - bits // 2)
    high = np.uint64(bits // 2)
    for k in range(out.shape[0]):  # without a branch, which is many times faster
        out[k] = np.int64(shuffled(seed, np.uint64(first + k), low, high))
    for k in range(out.shape[0]):
        while out[k] >= n:
            out[k] = np.int64(shuffled(seed, np.uint64(out[k]), low, high))
