"""The rotation before a product of codebooks (OPQ): groups of columns that share the variance and depend little.

Codebooks and rotation take turns: one step of k-means in every group, and the rotation that brings the rows closest to
what their codes stand for, by a singular value decomposition. It begins with the columns as they are, or with principal
directions, dealt out so that the variances of every group have about the same product, whichever is better after a few
turns. [Ge et al. 2013]
"""

from __future__ import annotations

import numpy as np

from globular.algorithms.kmeans.centers import update_centers
from globular.model.statistics import F64
from globular.seam.passes import Assign
from globular.seam.shard import Shard
from globular.threads import single_threaded_blas

FIRST_TURNS, TURNS = 6, 24
"""Steps of k-means, each with a new rotation after it, from both starts, and then from the better one; more = a lower
error, by ever less."""


@single_threaded_blas
def learn_rotation(sample: Shard, n_groups: int, n_clusters: int, rng: np.random.Generator) -> F64:
    """The rotation (D, D) that rows are multiplied by, from rows in memory. O(turns · N D (C + D))"""
    everyone, D = np.arange(sample.n_rows), sample.n_columns
    rows, weights = sample.take(everyone), sample.take(everyone, "weights")
    rows -= weights @ rows / weights.sum()  # no rotation depends on where rows are, nor on their unit
    rows = (rows / max(np.abs(rows).max(), np.finfo(float).tiny)).astype(np.float32)
    weighted = (rows * weights[:, None]).astype(np.float32)
    groups = [slice(m * D // n_groups, (m + 1) * D // n_groups) for m in range(n_groups)]
    first = rng.choice(sample.n_rows, n_clusters, replace=False)

    def take_turns(rotation: F64, books: list[F64], n_turns: int) -> tuple[float, F64, list[F64]]:
        for _ in range(n_turns):
            turned, rebuilt, error = rows @ rotation.astype(np.float32), np.empty_like(rows), 0.0
            for m, group in enumerate(groups):
                shard = sample.local(np.ascontiguousarray(turned[:, group]), weights)
                found = shard.run(Assign(books[m]))
                books[m] = update_centers(shard, found, books[m], unit=False).centers
                rebuilt[:, group] = books[m][shard.labels]
                error += found.objective
            left, _, right = np.linalg.svd(weighted.T @ rebuilt)
            rotation = left @ right
        return error, rotation, books

    starts = np.eye(D), _dealt_out(weighted.T @ rows, n_groups)
    ends = [take_turns(R, [(rows[first] @ R)[:, group] for group in groups], FIRST_TURNS) for R in starts]
    return take_turns(*min(ends, key=lambda end: end[0])[1:], TURNS)[1]


def _dealt_out(scatter: F64, n_groups: int) -> F64:
    """Principal directions, the largest variance first, each to the group with the smallest product that has room."""
    variances, directions = np.linalg.eigh(scatter)
    logs = np.log(np.maximum(variances, max(np.finfo(float).eps * variances[-1], np.finfo(float).tiny)))
    logs -= logs.min()
    width = len(logs) // n_groups
    products, columns = np.zeros(n_groups), [list[int]() for _ in range(n_groups)]
    for j in range(len(logs) - 1, -1, -1):
        g = min((g for g in range(n_groups) if len(columns[g]) < width), key=lambda g: products[g])
        columns[g].append(j)
        products[g] += logs[j]
    return np.asarray(directions[:, np.concatenate(columns)])
