"""`Assign` and `Expect` among all, with nothing left but what they do. Read this first; a test holds the passes to it.

Every pass over the rows goes through the same steps: *rows* by the block, their *candidates*, a *score* for each pair
by a matrix product, a *decision*, a *tally* that adds up. The passes beside this file do the same with tiles in
registers, bounds that skip rows, threads that share blocks, sparse rows and fewer candidates.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, HardStatistics, SoftStatistics

ROWS_PER_BLOCK = 256
"""Rows whose scores with all centres are held at once."""


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, start + ROWS_PER_BLOCK) for start in range(0, n, ROWS_PER_BLOCK))


def assign(rows: F64, weights: F64, centers: F64, labels: NDArray[np.int32]) -> HardStatistics:
    """Label every row with its closest centre (lowest index on ties), and sum rows and weights per cluster."""
    found = HardStatistics(np.zeros_like(centers), np.zeros(len(centers)), 0.0, 0, len(rows) * len(centers))
    norms = np.einsum("cd,cd->c", centers, centers)
    for block in _blocks(len(rows)):
        x, w = rows[block], weights[block]
        lengths = np.einsum("nd,nd->n", x, x)
        scores = norms - 2.0 * (x @ centers.T)  # ‖x − m‖² without ‖x‖²
        rounding = 1e-14 * len(x.T) * (lengths[:, None] + norms)
        nominated = scores - rounding <= (scores + rounding).min(axis=1, keepdims=True)
        squares = np.full(scores.shape, np.inf)
        i, c = nominated.nonzero()
        squares[i, c] = ((x[i] - centers[c]) ** 2).sum(axis=1)  # scores nominate, differences decide
        closest = squares.argmin(axis=1)
        found.n_changed += int((labels[block] != closest).sum())
        labels[block] = closest
        np.add.at(found.sums, closest, w[:, None] * x)
        np.add.at(found.counts, closest, w)
        found.objective += float(w @ squares.min(axis=1))
    return found


def expect(rows: F64, weights: F64, mixture: GaussianParameters) -> SoftStatistics:
    """Responsibilities of all components for every row, and the moments about the means that they weigh."""
    C, D = mixture.means.shape
    covariances = mixture.family.matrices(mixture.covariances, C, D)
    precisions, log_volumes = np.linalg.inv(covariances), np.linalg.slogdet(2.0 * np.pi * covariances)[1]
    counts, sums, scatter, log_likelihood = np.zeros(C), np.zeros((C, D)), np.zeros((C, D, D)), 0.0
    for block in _blocks(len(rows)):
        w, about_means = weights[block], rows[block, None, :] - mixture.means
        scores = np.log(mixture.weights) - 0.5 * (
            log_volumes + np.einsum("ncd,cde,nce->nc", about_means, precisions, about_means)
        )
        log_density = np.logaddexp.reduce(scores, axis=1)
        q = w[:, None] * np.exp(scores - log_density[:, None])
        counts += q.sum(axis=0)
        sums += np.einsum("nc,ncd->cd", q, about_means)
        scatter += np.einsum("nc,ncd,nce->cde", q, about_means, about_means)
        log_likelihood += float(w @ log_density)
    kind = mixture.family.scatter
    kept = kind.from_squares(np.diagonal(scatter, axis1=1, axis2=2)) if kind.separable else scatter
    return SoftStatistics(counts, sums, kept, log_likelihood, float(weights.sum()), len(rows) * C)
