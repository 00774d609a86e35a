"""Means of clusters by all threads: with thousands of centres one would take too long."""

from __future__ import annotations

import numpy as np

from globular.model.statistics import F64
from globular.threads import SECONDS_PER_NUMBER, even_ranges, run_all

NUMBERS_AT_ONCE = 1 << 14
"""Numbers of centres that a thread takes at once."""


def median_center(centers: F64) -> F64:
    """An origin for products of rows and centres, (D,): unlike the mean, it stays where most of them are.

    About an origin that one far centre has dragged away, products of all other rows lose their digits.
    """
    median: F64 = np.median(centers[:: max(1, len(centers) // 1000)], axis=0)
    return median


def means_of(sums: F64, divisors: F64, n_threads: int) -> F64:
    """Sums (C, D) by divisors (C,)."""
    if type(sums) is not np.ndarray:
        return sums / divisors[:, None]
    means = np.empty_like(sums)

    def divide(span: tuple[int, int]) -> None:
        some = slice(*span)
        np.divide(sums[some], divisors[some, None], out=means[some])

    spans = even_ranges(len(sums), 1 + NUMBERS_AT_ONCE // max(1, sums.shape[1]))
    run_all(divide, spans, n_threads, seconds=SECONDS_PER_NUMBER * sums.size, calls_blas=False)
    return means
