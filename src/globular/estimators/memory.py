"""The most memory that fits take beside the rows, known before any of it is taken.

Two moments count: while seeds are drawn, and in an iteration. What is counted are arrays with one entry per row, per
cluster or per pair of clusters; blocks of rows and scratch of fixed size come to a few megabytes.
"""

from __future__ import annotations

import logging
import math

from globular.algorithms.seeding.common import TAKEN_NUMBERS
from globular.machine import check_fits
from globular.model.covariances import FAMILIES, ScatterKind
from globular.passes.limits import COSTS_AT_ONCE, HASH_SIZE, NOMINEES, SORT_UP_TO, tree_bytes

logger = logging.getLogger("globular")

SMALL_THINGS = 8 << 20
THREAD_BYTES = 2 << 20
TAKEN_AT_ONCE = 1 << 29
"""Bytes of rows in float64 that seeding works on at a time."""
CELL_BYTES = 2**26
"""Blocks of cells and of statistics in the hands of the threads, and what compiled kernels take."""
_TRIPLE = 16
"""A pair of Eq. 8: two clusters and two sums."""


def check_allocation(n_bytes: int, what: str, alternative: str, *, at_most: int | None = None) -> None:
    """Say beforehand how much memory something takes; refuse what cannot fit into this machine, and say what can.

    `n_bytes` is sure to be needed. Where more may be, `at_most` is what is said.
    """
    check_fits(n_bytes, what, alternative)
    logger.info("%s: up to %.1f MiB", what, (n_bytes if at_most is None else at_most) / 2**20)


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


def low_rank_bytes(
    n_rows: int,
    n_columns: int,
    n_components: int,
    n_factors: int,
    *,
    C_prime: int,
    n_threads: int,
    correlated: bool = False,
) -> int:
    """For a mixture of factor analysers: parameters, directions and statistics in eight copies, a dozen of the means.

    A row has candidates with their densities and the order of these, and the start works as for other mixtures. Where
    noise is correlated there is a copy of the rows in its coordinates, and a few matrices.
    """
    parameters = 8 * n_components * n_columns * (12 + 8 * n_factors)
    start = 60 * n_rows + min(8 * n_rows * n_columns, TAKEN_AT_ONCE) * 5 // 2
    per_row = max(start, (60 + 44 * (C_prime + NOMINEES)) * n_rows)
    if correlated:
        parameters += 8 * n_columns * (n_rows + 24 * n_columns)
    return parameters + per_row + SMALL_THINGS + n_threads * (THREAD_BYTES + 32 * COSTS_AT_ONCE)


def chunky_bytes(n_rows: int, n_columns: int, leaf_size: int, kind: ScatterKind) -> int:
    """For a fit on the cells of a tree: the tree, twice while its subtrees are joined, and blocks of cells."""
    return 2 * tree_bytes(n_rows, n_columns, leaf_size, kind) + CELL_BYTES


def batch_bytes(n_rows: int, n_columns: int, *, in_memory: bool) -> int:
    """The most that batches take beside X: the numbers of their rows, and the rows where these come from elsewhere."""
    copied = 0 if in_memory else min(TAKEN_NUMBERS, n_rows // 2 * n_columns)
    return 9 * (n_rows // 2) + 16 * copied
