"""Mixtures inside of components: every row looks at the parts of its own component alone.

Rows of a component are brought together in blocks that the cache holds, so that covariance matrices are products.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import allocating_kernel

ROWS_AT_ONCE = 128  # in a block: with the differences and products of fifty columns a tenth of a megabyte


@allocating_kernel  # only those may call `np.dot`
def expect_within(
    x: Any,  # IN  (N, D)
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    order: Any,  # IN  (N,) rows, those of a component together
    bounds: Any,  # IN  (C + 1,) component c has order[bounds[c]] … order[bounds[c + 1] − 1]
    span: Any,  # IN  components to look at, from the first to before the second
    means: Any,  # IN  (C M, D), the M parts of a component one after the other
    factors: Any,  # IN  (C M, D, D) upper triangular, or (C M, D) or (C M, 1)
    constants: Any,  # IN  (C M,)
    counts: Any,  # OUT (C M,) Σ w q
    sums: Any,  # OUT (C M, D) Σ w q (x − μ)
    scatter: Any,  # OUT (C M, D, D), (C M, D) or (C M, 1): second moments about μ
    likelihoods: Any,  # OUT (C,) Σ w log Σ_m exp log p(m, x)
) -> None:
    """O(N · M · D²), or D where factors are no matrices."""
    D, M = x.shape[1], len(means) // len(likelihoods)
    away, white = np.empty((M, ROWS_AT_ONCE, D)), np.empty((ROWS_AT_ONCE, D))
    shares, product = np.empty((M, ROWS_AT_ONCE)), np.empty((D, D))
    for c in range(span[0], span[1]):
        for begin in range(bounds[c], bounds[c + 1], ROWS_AT_ONCE):
            n = min(ROWS_AT_ONCE, bounds[c + 1] - begin)
            for m in range(M):
                part = c * M + m
                for k in range(n):
                    i = order[begin + k]
                    scale = scales[i] if len(scales) else 1.0
                    for d in range(D):
                        away[m, k, d] = scale * x[i, d] - means[part, d]
                if factors.ndim == 3:
                    np.dot(away[m, :n], factors[part], white[:n])
                else:
                    for k in range(n):
                        for d in range(D):
                            white[k, d] = away[m, k, d] * factors[part, min(d, factors.shape[1] - 1)]
                for k in range(n):
                    total = 0.0
                    for d in range(D):
                        total += white[k, d] * white[k, d]
                    shares[m, k] = constants[part] - 0.5 * total
            for k in range(n):
                weight = weights[order[begin + k]] if len(weights) else 1.0
                largest, total = shares[:, k].max(), 0.0
                for m in range(M):
                    shares[m, k] = np.exp(shares[m, k] - largest)
                    total += shares[m, k]
                likelihoods[c] += weight * (largest + np.log(total))
                for m in range(M):
                    shares[m, k] *= weight / total
            for m in range(M):
                part = c * M + m
                for k in range(n):
                    counts[part] += shares[m, k]
                    root = np.sqrt(shares[m, k])
                    for d in range(D):
                        sums[part, d] += shares[m, k] * away[m, k, d]
                        away[m, k, d] *= root
                if scatter.ndim == 3:
                    np.dot(away[m, :n].T, away[m, :n], product)
                    for d in range(D):
                        for e in range(D):
                            scatter[part, d, e] += product[d, e]
                else:
                    for k in range(n):
                        for d in range(D):
                            scatter[part, min(d, scatter.shape[1] - 1)] += away[m, k, d] * away[m, k, d]
