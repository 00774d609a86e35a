"""The most memory that variational k-means and mixtures take beside the rows, known before any of it is taken.

Two moments count: while seeds are drawn, and in an iteration. What is counted are arrays with one entry per row, per
cluster or per pair of clusters; blocks of rows and scratch of fixed size come to a few megabytes.
"""

from __future__ import annotations

import math

from globular.backends.cpu.grouped import SORT_UP_TO
from globular.backends.cpu.truncated import HASH_SIZE
from globular.model.covariances import FAMILIES

SMALL_THINGS = 8 << 20
THREAD_BYTES = 2 << 20
TAKEN_AT_ONCE = 1 << 29
"""Seeding works on so many bytes of rows in float64 at a time."""
_TRIPLE = 16
"""A pair of Eq. 8: two clusters and two sums."""


def variational_bytes(
    n_rows: int, n_columns: int, n_clusters: int, G: int, C_prime: int, n_random: int, *, itemsize: int, n_threads: int
) -> int:
    """For a fit from seeding to labels. At worst every row moves in an iteration and sees pairs of its own."""
    G = min(G, n_clusters)
    # labels during the fit and as its result; centres, sums, what moved, the next centres; the graph, old and new
    common = 8 * n_rows + n_clusters * (4 * 8 * n_columns + 8 * max(G, 16) + 64)
    # distances, labels, orders and a sample of the rows; those at hand in float64, and once more for their own passes
    seeding = 60 * n_rows + 5 * min(8 * n_rows * n_columns, TAKEN_AT_ONCE) // 2 + 3 * 8 * n_clusters * n_columns
    # rows that move: as found and joined, their labels, sorted both ways for the sums; centres in the rows' dtype
    iterating = 80 * n_rows + 2 * itemsize * n_clusters * n_columns
    n_pairs = n_rows * n_random
    if C_prime == 1:
        # labels of the last pass, groups and places, twice; rows in the order of their clusters; a table per cluster
        iterating += 20 * n_rows + min(n_rows * n_columns * itemsize, SORT_UP_TO)
        n_pairs += n_clusters * G * (G - 1)
    else:
        # K(n) and how it begins; the tables of each thread; neighbouring rows share most of their pairs
        iterating += 24 * C_prime * n_rows
        iterating += n_threads * (24 * max(HASH_SIZE, 8 * C_prime * G) + 8 * n_clusters)
        n_pairs += 4 * C_prime * n_rows
    # pairs as found, joined, and their order; the estimate's scratch, two tasks a thread
    iterating += n_pairs * (2 * _TRIPLE + 8) + 2 * n_threads * 20 * n_clusters
    return common + max(seeding, iterating) + SMALL_THINGS


def mixture_bytes(
    n_rows: int, n_columns: int, n_components: int, covariance_type: str, *, C_prime: int = 0, n_threads: int
) -> int:
    """For a mixture that is fitted to rows, from its start by k-means on; C′ components a row, 0 for all.

    Parameters, statistics, factors and precisions are there in a dozen copies, and those of threads under way.
    """
    covariances = math.prod(FAMILIES[covariance_type].shape(n_components, n_columns))
    parameters = 8 * (n_components * (n_columns + 1) + max(covariances, n_components * n_columns))
    rows = 8 * n_rows * n_columns
    # the start: distances, labels and orders, and rows in float64; members, shares and their order in an iteration
    per_row = max(60 * n_rows + min(rows, TAKEN_AT_ONCE) * (5 if C_prime else 2) // 2, (20 + 36 * C_prime) * n_rows)
    return (12 + n_threads) * parameters + per_row + SMALL_THINGS + n_threads * THREAD_BYTES
