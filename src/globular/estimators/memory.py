"""The most memory that fits take beside the rows, known before any of it is taken.

One rough formula serves all algorithms: so many copies of the parameters, so many words a row, and a copy or two of the
rows while seeds are drawn or the rows are brought into an order.
"""

from __future__ import annotations

import logging
import math

from globular.machine import check_fits
from globular.model.covariances import FAMILIES, ScatterKind
from globular.passes.limits import tree_bytes

logger = logging.getLogger("globular")

FIXED_BYTES, THREAD_BYTES = 64 << 20, 2 << 20
"""Samples, cells and blocks of rows: in all, and for every thread."""
COPIED_AT_ONCE = 1 << 30
"""Bytes of rows in float64 that are copied at a time, at most."""
CELL_BYTES = 2**26
"""Blocks of cells and of statistics in the hands of the threads, and what compiled kernels take."""


def check_allocation(n_bytes: int, what: str, alternative: str, *, at_most: int | None = None) -> None:
    """Say beforehand how much memory something takes; refuse what cannot fit into this machine, and say what can.

    `n_bytes` is sure to be needed. Where more may be, `at_most` is what is said.
    """
    check_fits(n_bytes, what, alternative)
    logger.info("%s: up to %.1f MiB", what, (n_bytes if at_most is None else at_most) / 2**20)


def fit_bytes(n_rows: int, n_columns: int, n_numbers: int, n_words: int, n_threads: int) -> int:
    """For a fit with `n_numbers` parameters that holds `n_words` of 8 bytes for every row.

    Parameters, statistics, factors and what moved are there in 16 copies, and those of threads under way. Rows are
    drawn in float64, as found and as sorted.
    """
    copies = 5 * min(8 * n_rows * n_columns, COPIED_AT_ONCE) // 2
    parameters = (16 + n_threads) * 8 * n_numbers
    return parameters + 8 * n_words * n_rows + copies + FIXED_BYTES + n_threads * THREAD_BYTES


def words_of_neighbors(n_candidates: int, n_random: int) -> int:
    """Words a row where rows look at neighbourhoods: K(n) twice, and at worst pairs of Eq. 8 of every row's own."""
    return 20 + 23 * n_candidates + 5 * n_random


def mixture_bytes(
    n_rows: int, n_columns: int, n_components: int, covariance_type: str, *, C_prime: int = 0, n_threads: int
) -> int:
    """For a mixture that is fitted to rows, from its start by k-means on; C′ components a row, 0 for all."""
    covariances = math.prod(FAMILIES[covariance_type].shape(n_components, n_columns))
    n_numbers = n_components * (n_columns + 1) + max(covariances, n_components * n_columns)
    return fit_bytes(n_rows, n_columns, n_numbers, 8 + 5 * C_prime, n_threads)


def chunky_bytes(n_rows: int, n_columns: int, leaf_size: int, kind: ScatterKind) -> int:
    """For a fit on the cells of a tree: the tree, twice while its subtrees are joined, and blocks of cells."""
    return 2 * tree_bytes(n_rows, n_columns, leaf_size, kind) + CELL_BYTES
