"""Kernels of the partition tree that go from the leaves up: statistics of its nodes, and the best partition in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.kernels.moments import add_square
from globular.kernels.tree import weight_of


@inline
def _difference(rows: Any, weights: Any, i: int, end: int, means: Any, node: int, out: Any, place: int) -> None:
    """√w (x − x̄) of a row, zeros for rows from `end` on."""
    D = means.shape[1]
    if i >= end:
        for d in range(D):
            out[place, d] = 0.0
        return
    scale = np.sqrt(weight_of(weights, i))
    for d in range(D):
        out[place, d] = scale * (rows[i, d] - means[node, d])


@inline
def _sum_squares(
    rows: Any, weights: Any, begin: int, end: int, node: int, means: Any, scatter: Any, four: Any, square: Any
) -> None:
    """Scatter matrix of a leaf, four rows at a time and half a matrix in whole vectors. O(n·S)."""
    D = means.shape[1]
    square[:] = 0.0
    for i in range(begin, end, 4):
        for k in range(4):
            _difference(rows, weights, i + k, end, means, node, four, k)
        for d in range(D):
            a, b, c, e = four[0, d], four[1, d], four[2, d], four[3, d]
            for j in range(d - d % 8, D):
                square[d, j] += a * four[0, j] + b * four[1, j] + c * four[2, j] + e * four[3, j]
    place = 0
    for d in range(D):
        for j in range(d, D):
            scatter[node, place] = square[d, j]
            place += 1


@kernel
def _sum_rows(
    rows: Any,
    weights: Any,
    begin: int,
    end: int,
    node: int,
    sums: Any,
    means: Any,
    scatter: Any,
    four: Any,
    square: Any,
) -> None:
    """Statistics of a leaf in two sweeps. Rows that do not count at all have their plain mean. O(n·S)."""
    D = means.shape[1]
    total = 0.0
    for i in range(begin, end):
        total += weight_of(weights, i)
    sums[node] = total
    for d in range(D):
        means[node, d] = rows[begin, d]
    for i in range(begin, end):
        share = weight_of(weights, i) / total if total > 0.0 else 1.0 / (end - begin)
        for d in range(D):
            means[node, d] += share * (rows[i, d] - np.float64(rows[begin, d]))
    if square.shape[0]:
        _sum_squares(rows, weights, begin, end, node, means, scatter, four, square)
        return
    for i in range(begin, end):
        _difference(rows, weights, i, end, means, node, four, 0)
        add_square(scatter, node, 1.0, four[0])


@kernel
def sum_up(
    rows: Any,  # IN  (N, D) in the order of the tree
    weights: Any,  # IN  (N,) or empty
    starts: Any,  # IN  (n_nodes,)
    ends: Any,  # IN  (n_nodes,)
    children: Any,  # IN  (n_nodes, 2)
    first: int,  # IN  nodes first … last − 1, all of whose children are among them or done
    last: int,  # IN
    sums: Any,  # OUT (n_nodes,) Σ w
    means: Any,  # OUT (n_nodes, D)
    scatter: Any,  # IN zeros, OUT (n_nodes, S) about the mean
    four: Any,  # scratch (4, D)
    square: Any,  # scratch (D, D) for matrices, else (0, 0)
) -> None:
    """Statistics from the leaves up: a parent is the sum of its children. O(rows·S + nodes·S)."""
    D, width = means.shape[1], scatter.shape[1]
    difference = four[0]
    for node in range(last - 1, first - 1, -1):
        a, b = children[node, 0], children[node, 1]
        if a < 0:
            _sum_rows(rows, weights, starts[node], ends[node], node, sums, means, scatter, four, square)
            continue
        total = sums[a] + sums[b]
        sums[node] = total
        part = sums[b] / total if total > 0.0 else (ends[b] - starts[b]) / (ends[node] - starts[node])
        for d in range(D):
            difference[d] = means[b, d] - means[a, d]
            means[node, d] = means[a, d] + part * difference[d]
        for s in range(width):
            scatter[node, s] = scatter[a, s] + scatter[b, s]
        add_square(scatter, node, sums[a] * part, difference)


@kernel
def part_nodes(
    children: Any,  # IN  (n_nodes, 2)
    weights: Any,  # IN  (n_nodes,)
    gain: float,  # IN  what parting has to gain per unit of weight
    worth: Any,  # IN what each node is worth as a cluster, OUT what the best of its partitions is worth
    parted: Any,  # OUT (n_nodes,) whether that is one of its children's
) -> None:
    """The best partition that the tree contains, from the leaves up. O(nodes)."""
    for node in range(children.shape[0] - 1, -1, -1):
        a, b = children[node, 0], children[node, 1]
        parted[node] = a >= 0 and worth[a] + worth[b] > worth[node] + gain * weights[node]
        if parted[node]:
            worth[node] = worth[a] + worth[b]
