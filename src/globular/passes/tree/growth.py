"""How a partition tree grows: planes from a sample at the top, exact splits below.

The top of a tree costs most: every level of it moves all rows. So its planes come from a sample of the rows, and all
rows are sent down them at once, each read once. What arrives at a leaf of the top, some thousand rows, is copied out,
split further in place and summed up while it is in the cache; such subtrees grow side by side on our threads.

What is a task depends on the rows alone, so the tree does not depend on the threads. Memory: a number for every row,
and copies of the rows of as many subtrees as there are threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.kernels.tree import grow_nodes
from globular.kernels.tree_planes import route_rows
from globular.kernels.tree_sums import sum_up
from globular.model.groups import group_by
from globular.model.statistics import F64, I64
from globular.passes.host import ROWS_AT_ONCE
from globular.threads import even_ranges, map_all, run_all

SUBTREES = 256
"""Subtrees that are grown, about."""
SMALLEST_SUBTREE = 8192
"""Least rows of a subtree."""
SAMPLED = 128
"""Rows of the sample for every subtree."""
DEEPEST = 24
"""Levels of the top at most: rows go down all of them."""


@dataclass(frozen=True, eq=False, slots=True)
class Nodes:
    """The arrays of a tree; see `PartitionTree`."""

    order: NDArray[np.integer]
    """Row numbers, (N,)."""
    starts: I64
    ends: I64
    children: I64
    """(n_nodes, 2); −1 for leaves."""
    weights: F64
    means: F64
    scatter: F64

    @property
    def n_nodes(self) -> int:
        return len(self.starts)

    @property
    def n_rows(self) -> int:
        return len(self.order)


@dataclass(frozen=True, slots=True)
class Top:
    """The nodes above some subtrees, parents before children."""

    children: I64
    """(n_nodes, 2): nodes of the top, or ~s for the root of subtree s."""
    spans: I64
    """Range of the subtrees below each, (n_nodes, 2)."""


def grow(rows: NDArray[Any], weights: F64, width: int, leaf_size: int, n_threads: int) -> Nodes:
    """A tree over the rows, its scatter of `width` numbers a node; `weights` is empty for ones."""
    N = len(rows)
    largest = max(SMALLEST_SUBTREE, N // SUBTREES, leaf_size)
    if largest >= N:
        return _subtree(rows, weights, np.arange(N, dtype=np.int32), width, leaf_size)
    top, starts, order = _route(rows, weights, largest, n_threads)
    parts = [order[begin:end] for begin, end in itertools.pairwise(starts)]
    subtrees = map_all(lambda part: _subtree(rows, weights, part, width, leaf_size), parts, n_threads)
    return join(subtrees, top, n_threads, rows.dtype)


def _route(rows: NDArray[Any], weights: F64, largest: int, n_threads: int) -> tuple[Top, I64, NDArray[np.integer]]:
    """The top; where its subtrees begin among the rows grouped by subtree; and the numbers of these rows."""
    N, D = rows.shape
    n = min(N, SAMPLED * (-(-N // largest)))
    # one row out of every N/n, at a random place there: rows may come sorted, and in periods
    edges = np.linspace(0, N, n + 1).astype(np.int64)
    chosen = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    sample, numbers = rows[chosen], np.arange(n, dtype=np.int32)
    starts, ends, depths = np.zeros((3, 2 * n), dtype=np.int64)
    children, planes, cuts = np.empty((2 * n, 2), dtype=np.int64), np.zeros((2 * n, D)), np.zeros(2 * n)
    ends[0] = n
    n_nodes = grow_nodes(
        sample, numbers, weights[chosen] if len(weights) else weights, largest * n / N, DEEPEST,
        starts, ends, children, planes, cuts, depths, np.empty(n), *np.empty((3, D)),
    )  # fmt: skip
    starts, ends, children = starts[:n_nodes], ends[:n_nodes], children[:n_nodes]
    leaves = np.flatnonzero(children[:, 0] < 0)
    children[leaves] = leaves[:, None]  # rows that have arrived stay
    leaves = leaves[np.argsort(starts[leaves])]  # from left to right, so that every node holds a range of them
    inner = np.setdiff1d(np.arange(n_nodes), leaves)
    names = np.empty(n_nodes, dtype=np.int64)
    names[inner], names[leaves] = np.arange(len(inner)), ~np.arange(len(leaves))
    begins = np.append(starts[leaves], n)
    spans = np.column_stack([np.searchsorted(begins, starts[inner]), np.searchsorted(begins, ends[inner])])
    labels = np.empty(N, dtype=np.int32)

    def send(block: tuple[int, int]) -> None:
        within = slice(*block)
        route_rows(rows[within], children, planes, cuts, labels[within])
        labels[within] = ~names[labels[within]]

    run_all(send, even_ranges(N, ROWS_AT_ONCE), n_threads)
    return Top(names[children[inner]], spans), *group_by(labels, len(leaves), n_threads)


def _subtree(rows: NDArray[Any], weights: F64, numbers: NDArray[np.integer], width: int, leaf_size: int) -> Nodes:
    """All nodes over the rows of these numbers, which are reordered in place. O(n·D·log n + n·S)."""
    n, D = len(numbers), rows.shape[1]
    held, counted = np.take(rows, numbers, axis=0), weights[numbers] if len(weights) else np.empty(0)
    starts, ends = np.empty(2 * n, dtype=np.int64), np.empty(2 * n, dtype=np.int64)
    children = np.empty((2 * n, 2), dtype=np.int64)
    starts[0], ends[0] = 0, n
    no_planes = np.empty((0, D)), np.empty(0), np.empty(0, dtype=np.int64)
    n_nodes = grow_nodes(
        held, numbers, counted, float(leaf_size), 0, starts, ends, children, *no_planes, np.empty(n), *np.empty((3, D))
    )
    arrays = starts[:n_nodes].copy(), ends[:n_nodes].copy(), children[:n_nodes].copy()
    sums, means, scatter = np.empty(n_nodes), np.empty((n_nodes, D)), np.zeros((n_nodes, width))
    square = np.empty((D, D)) if width > D > 1 else np.empty((0, 0))
    sum_up(held, counted, *arrays, 0, n_nodes, sums, means, scatter, np.empty((4, D)), square)
    return Nodes(numbers, *arrays, sums, means, scatter)


def join(trees: Sequence[Nodes], top: Top, n_threads: int, dtype: np.dtype) -> Nodes:
    """One tree over the rows of all, each of them a subtree of it. The top's statistics are sums of its children's.

    `dtype` is that of the rows, for which the kernel is there; none of them is looked at.
    """
    n_top, D, width = len(top.children), trees[0].means.shape[1], trees[0].scatter.shape[1]
    rows_before = np.cumsum([0, *(tree.n_rows for tree in trees)])
    nodes_before = n_top + np.cumsum([0, *(tree.n_nodes for tree in trees)])
    n_rows, n_nodes = rows_before[-1], nodes_before[-1]
    starts, ends = np.empty((2, n_nodes), dtype=np.int64)
    numbers = np.result_type(*(tree.order.dtype for tree in trees))
    joined = Nodes(
        np.empty(n_rows, dtype=numbers), starts, ends, np.empty((n_nodes, 2), dtype=np.int64),
        np.empty(n_nodes), np.empty((n_nodes, D)), np.empty((n_nodes, width)),
    )  # fmt: skip

    def copy(number: int) -> None:
        tree, (begin, end) = trees[number], nodes_before[number : number + 2]
        joined.order[rows_before[number] : rows_before[number + 1]] = tree.order
        for name in ("weights", "means", "scatter"):
            getattr(joined, name)[begin:end] = getattr(tree, name)
        np.add(tree.starts, rows_before[number], out=starts[begin:end])
        np.add(tree.ends, rows_before[number], out=ends[begin:end])
        joined.children[begin:end] = np.where(tree.children < 0, -1, tree.children + begin)

    # The memory is new, and the system gives out its pages to one thread at a time.
    run_all(copy, range(len(trees)), min(n_threads, 4))
    starts[:n_top], ends[:n_top] = rows_before[top.spans].T
    joined.children[:n_top] = np.where(top.children < 0, nodes_before[~top.children], top.children)
    joined.scatter[:n_top] = 0.0
    sum_up(
        np.empty((0, D), dtype), np.empty(0), joined.starts, joined.ends, joined.children, 0, n_top,
        joined.weights, joined.means, joined.scatter, np.empty((4, D)), np.empty((0, 0)),
    )  # fmt: skip
    return joined


def halving(n: int) -> Top:
    """n subtrees, halved until single."""
    children, spans = np.empty((n - 1, 2), dtype=np.int64), np.empty((n - 1, 2), dtype=np.int64)
    spans[:1] = 0, n
    n_nodes = 1
    for node in range(n - 1):
        first, last = spans[node]
        middle = (first + last) // 2
        for side, span in enumerate([(first, middle), (middle, last)]):
            if span[1] - span[0] == 1:
                children[node, side] = ~span[0]
            else:
                children[node, side], spans[n_nodes] = n_nodes, span
                n_nodes += 1
    return Top(children, spans)
