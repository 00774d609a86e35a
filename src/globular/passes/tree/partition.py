"""A binary tree over the rows, with the statistics of every node: the kd-tree of Verbeek, Vlassis & Nunnink 2003.

Layout
------
The tree is a handful of flat arrays, without objects or pointers. `order` is a permutation of the row numbers in which
the rows of any node lie side by side: node i holds the rows order[starts[i]:ends[i]]. `children[i]` are two node
numbers, or −1 twice for a leaf; the root is node 0 and parents come before their children, so a loop from the last node
to the first sees children before parents (that is how statistics are summed up) and the other way round.

A node of more than `leaf_size` rows is split by the plane through its mean across its first principal component, found
by power iteration on a sample of the node. Where that leaves less than a 32nd of the rows on one side (outliers, ties)
it is split at the median of the projections, which keeps the depth logarithmic; rows that are all alike stay together
in one leaf, whatever their number. Below a leaf nothing is stored: whoever needs finer cells takes its rows one by one.

Statistics are the weight Σ w, the mean and the scatter about that mean, in float64 and packed as in `model.chunks`. A
leaf takes them from its rows in two sweeps, a parent from its children,

    S = S_a + S_b + w_a w_b / (w_a + w_b) (x̄_b − x̄_a)(x̄_b − x̄_a)ᵀ,

never from sums of squares, so an offset of the data costs no digits.

Growth
------
The top of a tree costs most: every level of it moves all rows. So its planes come from a sample of the rows, and all
rows are sent down them at once, each read once. What arrives at a leaf of the top, some thousand rows, is copied out,
split further in place and summed up while it is in the cache; such subtrees grow side by side on our threads. What is a
task depends on the rows alone, so the tree does not depend on the threads.

Cost and memory
---------------
O(N D log N) time. What stays is 4 bytes a row (8 from 2³¹ rows on) and 8 (1 + D + S) + 32 bytes a node, of which there
are about 2.8 N / leaf_size; while a tree grows, copies of the rows of as many subtrees as there are threads beside it.

Trees over different blocks of rows can be joined: a few nodes on top, and all the rest as it is. That is how a tree
over streamed data comes about.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import inline, kernel
from globular.model.chunks import Chunks
from globular.model.covariances import ScatterKind
from globular.model.statistics import F64, I64
from globular.passes.cpu.engine.densities import add_square, weight_of
from globular.passes.cpu.engine.group import group_by
from globular.passes.host import GATHERED_AT_ONCE, ROWS_AT_ONCE
from globular.passes.tree.splitting import Held, Planes, Shape, grow_nodes, route_rows
from globular.threads import SECONDS_PER_NUMBER, even_ranges, map_all, run_all

SUBTREES = 256
"""Subtrees that are grown, about."""
SMALLEST_SUBTREE = 8192
"""Least rows of a subtree."""
SAMPLED = 128
"""Rows of the sample for every subtree."""
DEEPEST = 24
"""Levels of the top at most: rows go down all of them."""


class Totals(NamedTuple):
    """Statistics of nodes, and the workspace for them."""

    weights: Any  # (n_nodes,) Σ w
    means: Any  # (n_nodes, D)
    scatter: Any  # (n_nodes, S) about the mean
    four: Any  # (4, D)
    square: Any  # (D, D) for matrices, else (0, 0)


@inline
def _difference(rows: Any, weights: Any, i: int, end: int, totals: Any, node: int, place: int) -> None:
    """√w (x − x̄) of a row, zeros for rows from `end` on."""
    D, out = totals.means.shape[1], totals.four
    if i >= end:
        for d in range(D):
            out[place, d] = 0.0
        return
    scale = np.sqrt(weight_of(weights, i))
    for d in range(D):
        out[place, d] = scale * (rows[i, d] - totals.means[node, d])


@inline
def _sum_squares(rows: Any, weights: Any, begin: int, end: int, node: int, totals: Any) -> None:
    """Scatter matrix of a leaf, four rows at a time and half a matrix in whole vectors. O(n·S)."""
    D, four, square = totals.means.shape[1], totals.four, totals.square
    square[:] = 0.0
    for i in range(begin, end, 4):
        for k in range(4):
            _difference(rows, weights, i + k, end, totals, node, k)
        for d in range(D):
            a, b, c, e = four[0, d], four[1, d], four[2, d], four[3, d]
            for j in range(d - d % 8, D):
                square[d, j] += a * four[0, j] + b * four[1, j] + c * four[2, j] + e * four[3, j]
    place = 0
    for d in range(D):
        for j in range(d, D):
            totals.scatter[node, place] = square[d, j]
            place += 1


@kernel
def _sum_rows(rows: Any, weights: Any, begin: int, end: int, node: int, totals: Any) -> None:
    """Statistics of a leaf in two sweeps. Rows that do not count at all have their plain mean. O(n·S)."""
    means, total = totals.means, 0.0
    D = means.shape[1]
    for i in range(begin, end):
        total += weight_of(weights, i)
    totals.weights[node] = total
    for d in range(D):
        means[node, d] = rows[begin, d]
    for i in range(begin, end):
        share = weight_of(weights, i) / total if total > 0.0 else 1.0 / (end - begin)
        for d in range(D):
            means[node, d] += share * (rows[i, d] - np.float64(rows[begin, d]))
    if totals.square.shape[0]:
        _sum_squares(rows, weights, begin, end, node, totals)
        return
    for i in range(begin, end):
        _difference(rows, weights, i, end, totals, node, 0)
        add_square(totals.scatter, node, 1.0, totals.four[0])


@kernel
def sum_up(
    rows: Any,  # IN  (N, D) in the order of the tree
    weights: Any,  # IN  (N,) or empty
    shape: Any,  # IN
    n_nodes: int,  # IN  how many of its nodes are to be summed up; the others have been
    totals: Any,  # OUT; the scatter of those IN zeros
) -> None:
    """Statistics from the leaves up: a parent is the sum of its children. O(rows·S + nodes·S)."""
    sums, means, scatter = totals.weights, totals.means, totals.scatter
    starts, ends, difference = shape.starts, shape.ends, totals.four[0]
    for node in range(n_nodes - 1, -1, -1):
        a, b = shape.children[node, 0], shape.children[node, 1]
        if a < 0:
            _sum_rows(rows, weights, starts[node], ends[node], node, totals)
            continue
        total = sums[a] + sums[b]
        sums[node] = total
        part = sums[b] / total if total > 0.0 else (ends[b] - starts[b]) / (ends[node] - starts[node])
        for d in range(means.shape[1]):
            difference[d] = means[b, d] - means[a, d]
            means[node, d] = means[a, d] + part * difference[d]
        for s in range(scatter.shape[1]):
            scatter[node, s] = scatter[a, s] + scatter[b, s]
        add_square(scatter, node, sums[a] * part, difference)


@dataclass(frozen=True, eq=False, slots=True)
class PartitionTree:
    """The arrays of a tree; see the head of this module."""

    order: NDArray[np.integer]
    """Row numbers, (N,)."""
    starts: I64
    ends: I64
    children: I64
    """(n_nodes, 2); −1 for leaves."""
    weights: F64
    means: F64
    scatter: F64
    kind: ScatterKind

    @property
    def n_nodes(self) -> int:
        return len(self.starts)

    def sizes(self, nodes: I64) -> I64:
        """Rows of these nodes."""
        return self.ends[nodes] - self.starts[nodes]

    def is_leaf(self, nodes: I64) -> NDArray[np.bool_]:
        """Which of these nodes have no children."""
        return self.children[nodes, 0] < 0

    def chunks(self, nodes: I64, n_threads: int = 1) -> Chunks:
        """The statistics of these nodes."""
        D, S = self.means.shape[1], self.scatter.shape[1]
        found = np.empty(len(nodes)), np.empty((len(nodes), D)), np.empty((len(nodes), S))

        def copy(span: tuple[int, int]) -> None:
            some = slice(*span)
            for values, out in zip((self.weights, self.means, self.scatter), found, strict=True):
                np.take(values, nodes[some], axis=0, out=out[some], mode="clip")  # without a copy of its own

        seconds = SECONDS_PER_NUMBER * len(nodes) * (1 + D + S)
        run_all(copy, even_ranges(len(nodes), GATHERED_AT_ONCE), n_threads, seconds=seconds, calls_blas=False)
        return Chunks(*found, self.kind)

    def rows_of(self, node: int) -> NDArray[np.integer]:
        """Numbers of the rows of a node."""
        return self.order[self.starts[node] : self.ends[node]]

    def cut(self, largest: float, depth: int) -> I64:
        """The highest nodes of a weight of at most `largest` that are at least `depth` deep; leaves where none is."""
        found, front = [], np.zeros(1, dtype=np.int64)
        level = 0
        while len(front):
            stay = self.is_leaf(front)
            if level >= depth:
                stay |= self.weights[front] <= largest
            found.append(front[stay])
            front = self.children[front[~stay]].ravel()
            level += 1
        return np.sort(np.concatenate(found))

    @classmethod
    def build(
        cls, rows: NDArray[Any], weights: F64, kind: ScatterKind, leaf_size: int, *, first_row: int = 0,
        n_threads: int = 1,
    ) -> PartitionTree:  # fmt: skip
        """A tree over the rows; `weights` is empty for ones.

        The rows have the numbers first_row, first_row + 1, …
        """
        if leaf_size < 1:
            raise ValueError(f"leaf_size={leaf_size!r} must be at least 1")
        if len(rows) == 0:
            raise ValueError("a tree needs at least one row")
        N = len(rows)
        largest = max(SMALLEST_SUBTREE, N // SUBTREES, leaf_size)
        if largest >= N:
            tree = _subtree(rows, weights, np.arange(N, dtype=np.int32), kind, leaf_size)
        else:
            top, starts, order = _route(rows, weights, largest, n_threads)
            parts = [order[begin:end] for begin, end in itertools.pairwise(starts)]
            subtrees = map_all(lambda part: _subtree(rows, weights, part, kind, leaf_size), parts, n_threads)
            tree = _join(subtrees, top, n_threads, rows.dtype)
        return replace(tree, order=tree.order.astype(np.int64) + first_row) if first_row else tree

    @classmethod
    def join(cls, trees: Sequence[PartitionTree], n_threads: int = 1) -> PartitionTree:
        """One tree over the rows of all; each of them is a subtree of it."""
        if len(trees) == 1:
            return trees[0]
        return _join(trees, _halving(len(trees)), n_threads, np.dtype(np.float64))


@dataclass(frozen=True, slots=True)
class Top:
    """The nodes above some subtrees, parents before children."""

    children: I64
    """(n_nodes, 2): nodes of the top, or ~s for the root of subtree s."""
    spans: I64
    """Range of the subtrees below each, (n_nodes, 2)."""


def _nodes_over(
    rows: NDArray[Any], weights: F64, numbers: NDArray[np.integer], largest: float, deepest: int = 0
) -> tuple[Shape, Planes]:
    """Nodes of at most `largest` of these rows, which are reordered in place; with planes if there is a deepest."""
    (n, D), size = rows.shape, 2 * len(rows)
    starts, ends = np.empty((2, size), dtype=np.int64)
    shape = Shape(starts, ends, np.empty((size, 2), dtype=np.int64))
    starts[0], ends[0] = 0, n
    n_planes = size if deepest else 0
    planes = Planes(np.zeros((n_planes, D)), np.zeros(n_planes), np.zeros(n_planes, dtype=np.int64))
    held = Held(rows, numbers, weights, np.empty(n), *np.empty((3, D)))
    n_nodes = grow_nodes(held, float(largest), deepest, shape, planes)
    return Shape(*(each[:n_nodes].copy() for each in shape)), planes


def _route(rows: NDArray[Any], weights: F64, largest: int, n_threads: int) -> tuple[Top, I64, NDArray[np.integer]]:
    """The top; where its subtrees begin among the rows grouped by subtree; and the numbers of these rows."""
    N = len(rows)
    n = min(N, SAMPLED * (-(-N // largest)))
    # one row out of every N/n, at a random place there: rows may come sorted, and in periods
    edges = np.linspace(0, N, n + 1).astype(np.int64)
    chosen = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    sampled = rows[chosen], weights[chosen] if len(weights) else weights, np.arange(n, dtype=np.int32)
    (starts, ends, children), planes = _nodes_over(*sampled, largest * n / N, DEEPEST)
    n_nodes = len(starts)
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
        route_rows(rows[within], children, planes, labels[within])
        labels[within] = ~names[labels[within]]

    run_all(send, even_ranges(N, ROWS_AT_ONCE), n_threads)
    return Top(names[children[inner]], spans), *group_by(labels, len(leaves), n_threads)


def _subtree(
    rows: NDArray[Any], weights: F64, numbers: NDArray[np.integer], kind: ScatterKind, leaf_size: int
) -> PartitionTree:
    """All nodes over the rows of these numbers, which are reordered in place. O(n·D·log n + n·S)."""
    D, width = rows.shape[1], kind.width(rows.shape[1])
    held, counted = np.take(rows, numbers, axis=0), weights[numbers] if len(weights) else np.empty(0)
    shape, _ = _nodes_over(held, counted, numbers, leaf_size)
    n_nodes = len(shape.starts)
    found = np.empty(n_nodes), np.empty((n_nodes, D)), np.zeros((n_nodes, width))
    square = np.empty((D, D)) if width > D > 1 else np.empty((0, 0))
    sum_up(held, counted, shape, n_nodes, Totals(*found, np.empty((4, D)), square))
    return PartitionTree(numbers, *shape, *found, kind)


def _join(trees: Sequence[PartitionTree], top: Top, n_threads: int, dtype: np.dtype) -> PartitionTree:
    """One tree over the rows of all, each of them a subtree of it. The top's statistics are sums of its children's.

    `dtype` is that of the rows, for which the kernel is there; none of them is looked at.
    """
    n_top, D, width = len(top.children), trees[0].means.shape[1], trees[0].scatter.shape[1]
    rows_before = np.cumsum([0, *(len(tree.order) for tree in trees)])
    nodes_before = n_top + np.cumsum([0, *(tree.n_nodes for tree in trees)])
    n_rows, n_nodes = rows_before[-1], nodes_before[-1]
    starts, ends = np.empty((2, n_nodes), dtype=np.int64)
    numbers = np.result_type(*(tree.order.dtype for tree in trees))
    joined = PartitionTree(
        np.empty(n_rows, dtype=numbers), starts, ends, np.empty((n_nodes, 2), dtype=np.int64),
        np.empty(n_nodes), np.empty((n_nodes, D)), np.empty((n_nodes, width)), trees[0].kind,
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
    totals = Totals(joined.weights, joined.means, joined.scatter, np.empty((4, D)), np.empty((0, 0)))
    sum_up(np.empty((0, D), dtype), np.empty(0), Shape(starts, ends, joined.children), n_top, totals)
    return joined


def _halving(n: int) -> Top:
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
