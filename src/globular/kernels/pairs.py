"""Pairs (row, component): log-densities of a Gaussian mixture and its moments, where most pairs do not matter.

Rows of a component are brought together in blocks that the cache holds, so that covariance matrices are products.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import allocating_kernel, inline

PAIRS_AT_ONCE = 128  # rows in a block: with differences and products of fifty columns a tenth of a megabyte


@inline
def load_differences(x: Any, numbers: Any, first: int, n: int, scales: Any, means: Any, c: int, away: Any) -> None:
    """away[k] = x − μ_c of rows numbers[first + k]. O(n · D)."""
    for k in range(n):
        i = numbers[first + k]
        scale = scales[i] if scales.shape[0] else 1.0
        for d in range(x.shape[1]):
            away[k, d] = scale * x[i, d] - means[c, d]


@allocating_kernel  # only those may call `np.dot`
def pair_joint(
    x: Any,  # IN  (N, D)
    scales: Any,  # IN  (N,) or empty
    numbers: Any,  # IN  (P,) rows, those of a component together
    places: Any,  # IN  (P,) where the value of each pair goes
    bounds: Any,  # IN  (C + 1,) component c has pairs bounds[c] … bounds[c + 1] − 1
    means: Any,  # IN  (C, D)
    factors: Any,  # IN  (C, D, D) upper triangular, or (C, D) or (C, 1)
    constants: Any,  # IN  (C,)
    away: Any,  # scratch (2, PAIRS_AT_ONCE, D)
    joint: Any,  # OUT  log p(c, x) of every pair
) -> None:
    """O(pairs · D²), or D where factors are no matrices."""
    D = x.shape[1]
    for c in range(len(means)):
        for begin in range(bounds[c], bounds[c + 1], PAIRS_AT_ONCE):
            n = min(PAIRS_AT_ONCE, bounds[c + 1] - begin)
            load_differences(x, numbers, begin, n, scales, means, c, away[0])
            if factors.ndim == 3:
                np.dot(away[0, :n], factors[c], away[1, :n])
            else:
                for k in range(n):
                    for d in range(D):
                        away[1, k, d] = away[0, k, d] * factors[c, min(d, factors.shape[1] - 1)]
            for k in range(n):
                total = 0.0
                for d in range(D):
                    total += away[1, k, d] * away[1, k, d]
                joint[places[begin + k]] = constants[c] - 0.5 * total


@allocating_kernel
def pair_moments(
    x: Any,  # IN  (N, D)
    scales: Any,  # IN  (N,) or empty
    numbers: Any,  # IN  (P,) rows, those of a component together
    places: Any,  # IN  (P,) where the share of each pair is
    bounds: Any,  # IN  (C + 1,)
    means: Any,  # IN  (C, D)
    shares: Any,  # IN  w q of every pair
    away: Any,  # scratch (PAIRS_AT_ONCE, D)
    product: Any,  # scratch (D, D)
    counts: Any,  # OUT (C,) Σ w q
    sums: Any,  # OUT (C, D) Σ w q (x − μ)
    scatter: Any,  # OUT (C, D, D), (C, D) or (C, 1): second moments about μ
) -> None:
    """O(pairs · D²), or D where second moments are no matrices."""
    D = x.shape[1]
    for c in range(len(means)):
        for begin in range(bounds[c], bounds[c + 1], PAIRS_AT_ONCE):
            n = min(PAIRS_AT_ONCE, bounds[c + 1] - begin)
            load_differences(x, numbers, begin, n, scales, means, c, away)
            for k in range(n):
                share = shares[places[begin + k]]
                counts[c] += share
                root = np.sqrt(share)
                for d in range(D):
                    sums[c, d] += share * away[k, d]
                    away[k, d] *= root
            if scatter.ndim == 3:
                np.dot(away[:n].T, away[:n], product)
                for d in range(D):
                    for e in range(D):
                        scatter[c, d, e] += product[d, e]
            else:
                for k in range(n):
                    for d in range(D):
                        scatter[c, min(d, scatter.shape[1] - 1)] += away[k, d] * away[k, d]
