"""Means of clusters by all threads: with thousands of centres one would take too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from globular.jit import Queue, new_queue, share_kernel, strict_kernel, take_number
from globular.model.statistics import F64
from globular.threads import SECONDS_PER_NUMBER, worth_waking

NUMBERS_AT_ONCE = 1 << 14
"""Numbers of centres that a thread takes at once."""


@strict_kernel
def divide_sums(
    queue: Queue,  # IN/OUT blocks of sums
    size: int,  # IN  sums of a block
    sums: Any,  # IN  (C, D)
    divisors: Any,  # IN  (C,)
    means: Any,  # OUT (C, D) sums / divisors
) -> None:
    """Means from sums: those of NumPy, number by number. O(C · D)."""
    begin = size * take_number(queue)
    while begin < sums.shape[0]:
        for c in range(begin, min(begin + size, sums.shape[0])):
            for j in range(sums.shape[1]):
                means[c, j] = sums[c, j] / divisors[c]
        begin = size * take_number(queue)


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
    by_blocks(lambda queue, size: divide_sums(queue, size, sums, divisors, means), sums.shape, n_threads)
    return means


def by_blocks(work: Callable[..., object], shape: tuple[int, ...], n_threads: int) -> None:
    """Call a kernel over blocks of centres: it gets the queue of these, and how many centres a block has."""
    queue, (C, D) = new_queue(), shape
    size = 1 + NUMBERS_AT_ONCE // max(1, D)
    threads = worth_waking(min(n_threads, -(-C // size)), SECONDS_PER_NUMBER * C * D)
    share_kernel(lambda: work(queue, size), queue, threads, calls_blas=False)
