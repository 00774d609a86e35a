"""Alg. 2 as the authors' own published program (var-GMMs) has it, where that is not what the paper prints.

The program was read, and this is written anew. It differs from the printed algorithm, and from `fits.py`, in this:

- The start. Every row draws K(n), every cluster draws G_c, and the first G(n) is the union of these: all rows with the
  same K(n) look at the same clusters. Printed is a random G(n) for every row.
- Eq. 8 takes means of squared distances. Printed are distances.
- A cluster without rows has its mean at the origin, there being nothing to divide by.
- σ² = 1 at first. There is no test for convergence, only a number of iterations.
- A random candidate may be one that is there already, and all of its distances enter Eq. 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.common import Centers, Rows
from experiments.forster2018.fits import Variant

Clusters = NDArray[np.int64]
BLOCK = 20_000
"""Rows whose distances are computed at once."""


def run_program(X: Rows, seeds: NDArray[Any], variant: Variant, seed: int) -> tuple[Centers, int]:
    """The centres after all iterations, and how many there were until nothing changed any more."""
    rows, centers = X.astype(np.float64), np.array(seeds, dtype=np.float64)
    rng, (N, C), G = np.random.default_rng(seed), (len(X), len(seeds)), variant.G
    C_prime, variance = (1 if variant.kind == "k-means" else G), 1.0
    kept = rng.integers(C, size=(N, C_prime))
    graph = np.array([[c, *rng.permutation(np.delete(np.arange(C), c))[: G - 1]] for c in range(C)])
    for t in range(variant.n_warmup + variant.max_iter):
        space = graph[kept].reshape(N, -1)
        if variant.n_random:
            space = np.column_stack([space, rng.integers(C, size=(N, variant.n_random))])
        space = np.sort(space, axis=1)
        d2 = squared_distances(rows, centers, space)
        d2[:, 1:][space[:, 1:] == space[:, :-1]] = np.inf  # each cluster once
        order = np.sort(np.argpartition(d2, C_prime - 1, axis=1)[:, :C_prime], axis=1)
        found, new_graph = np.take_along_axis(space, order, axis=1), estimated(space, d2, C, G)
        settled = np.array_equal(found, kept) and np.array_equal(new_graph, graph)
        kept, graph = found, new_graph
        if t < variant.n_warmup:
            continue
        centers, variance = m_step(rows, C, kept, np.take_along_axis(d2, order, axis=1), variance)
        if settled and t > variant.n_warmup and variant.kind == "k-means" and not variant.n_random:
            return centers, t + 1 - variant.n_warmup  # what follows repeats this iteration
    return centers, variant.max_iter


def squared_distances(rows: NDArray[np.float64], centers: Centers, space: Clusters) -> NDArray[np.float64]:
    """Of every row to the clusters of its set."""
    d2 = np.empty(space.shape)
    for n in range(0, len(rows), BLOCK):
        difference = rows[n : n + BLOCK, None, :] - centers[space[n : n + BLOCK]]
        d2[n : n + BLOCK] = np.einsum("nmd,nmd->nm", difference, difference)
    return d2


def estimated(space: Clusters, d2: NDArray[np.float64], C: int, G: int) -> Clusters:
    """G_c: the smallest means of squared distances; where fewer are known, any others."""
    own = space[np.arange(len(space)), np.argmin(d2, axis=1)]
    known = np.isfinite(d2)
    pairs = (own[:, None] * C + space)[known]
    counts, sums = np.bincount(pairs, minlength=C * C), np.bincount(pairs, d2[known], C * C)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf).reshape(C, C)
    np.fill_diagonal(means, 0.0)
    return np.sort(np.argpartition(-means, C - G, axis=1)[:, -G:], axis=1)


def m_step(
    rows: NDArray[np.float64], C: int, kept: Clusters, d2: NDArray[np.float64], variance: float
) -> tuple[Centers, float]:
    """Eq. 4 with the responsibilities of Eq. 5."""
    share = np.exp((d2.min(axis=1, keepdims=True) - d2) / (2.0 * variance))
    share /= share.sum(axis=1, keepdims=True)
    counts = np.bincount(kept.ravel(), share.ravel(), C)
    centers = np.column_stack([np.bincount(kept.ravel(), (share * column[:, None]).ravel(), C) for column in rows.T])
    centers[counts > 0] /= counts[counts > 0, None]
    squares = float(np.einsum("nd,nd->", rows, rows) - counts @ np.einsum("cd,cd->c", centers, centers))
    return centers, squares / rows.size
