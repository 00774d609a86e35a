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

Cost and memory
---------------
O(N D log N) time. Building takes a copy of the rows in their own dtype, which is partitioned in place together with
their numbers and is dropped afterwards; what stays is 4 bytes a row (8 from 2³¹ rows on) and 8 (1 + D + S) + 32 bytes a
node, of which there are about 2.8 N / leaf_size. The largest nodes are split one level after the other, then subtrees
side by side on our threads; what is a task depends on the rows alone, so the tree does not depend on the threads.

Trees over different blocks of rows can be joined: a few nodes on top, and all the rest as it is. That is how a tree
over streamed data comes about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.kernels import tree as kernels
from globular.model.chunks import Chunks, packed_width
from globular.model.covariances import ScatterKind
from globular.model.statistics import F64, I64
from globular.threads import ordered_map, run_all

SUBTREES = 64
"""About so many subtrees are grown side by side …"""
SMALLEST_SUBTREE = 4096
"""… but none of them over fewer rows than this."""
NODES_PER_LEAF_SIZE = 2.8
"""Nodes are about this number times N / leaf_size (measured on Gaussian data; most leaves are half full or more)."""


def tree_bytes(n_rows: int, n_columns: int, leaf_size: int, kind: ScatterKind) -> int:
    """About how much memory a tree takes, without the copy of the rows while it is built."""
    n_nodes = min(NODES_PER_LEAF_SIZE * n_rows / leaf_size, 2 * n_rows)
    return int(n_nodes * (8 * (1 + n_columns + packed_width(kind, n_columns)) + 32) + 4 * n_rows)


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

    @property
    def n_rows(self) -> int:
        return len(self.order)

    def sizes(self, nodes: I64) -> I64:
        """Rows of these nodes."""
        return self.ends[nodes] - self.starts[nodes]

    def is_leaf(self, nodes: I64) -> NDArray[np.bool_]:
        """Which of these nodes have no children."""
        return self.children[nodes, 0] < 0

    def chunks(self, nodes: I64) -> Chunks:
        """The statistics of these nodes."""
        return Chunks(self.weights[nodes], self.means[nodes], self.scatter[nodes], self.kind)

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
        cls,
        rows: NDArray[Any],
        weights: F64,
        kind: ScatterKind,
        leaf_size: int,
        *,
        first_row: int = 0,
        n_threads: int = 1,
    ) -> PartitionTree:
        """A tree over the rows. Both arrays are reordered in place; `weights` is empty for ones.

        The rows have the numbers first_row, first_row + 1, …
        """
        if leaf_size < 1:
            raise ValueError(f"leaf_size={leaf_size!r} must be at least 1")
        if len(rows) == 0:
            raise ValueError("a tree needs at least one row")
        return _Builder(rows, weights, kind, leaf_size, n_threads).tree(first_row)

    @classmethod
    def join(cls, trees: Sequence[PartitionTree]) -> PartitionTree:
        """One tree over the rows of all; each of them is a subtree of it."""
        if len(trees) == 1:
            return trees[0]
        n_top = len(trees) - 1
        rows_before = np.cumsum([0, *(tree.n_rows for tree in trees)])
        nodes_before = n_top + np.cumsum([0, *(tree.n_nodes for tree in trees)])
        top, spans = _halving(len(trees), nodes_before[:-1])
        D, width = trees[0].means.shape[1], trees[0].scatter.shape[1]
        joined = cls(
            np.concatenate([tree.order for tree in trees]),
            np.concatenate([rows_before[spans[:, 0]], *_shifted(trees, "starts", rows_before)]),
            np.concatenate([rows_before[spans[:, 1]], *_shifted(trees, "ends", rows_before)]),
            np.concatenate([top, *_shifted(trees, "children", nodes_before)]),
            np.concatenate([np.zeros(n_top), *(tree.weights for tree in trees)]),
            np.concatenate([np.zeros((n_top, D)), *(tree.means for tree in trees)]),
            np.concatenate([np.zeros((n_top, width)), *(tree.scatter for tree in trees)]),
            trees[0].kind,
        )
        nothing = np.empty((0, D)), np.empty(0)
        kernels.sum_up(
            *nothing, joined.starts, joined.ends, joined.children, 0, n_top,
            joined.weights, joined.means, joined.scatter, np.empty(D),
        )  # fmt: skip
        return joined


def _shifted(trees: Sequence[PartitionTree], name: str, by: I64) -> list[I64]:
    """An array of every tree, its numbers (not the −1 of leaves) moved on."""
    arrays = [getattr(tree, name) for tree in trees]
    return [np.where(array < 0, -1, array + shift) for array, shift in zip(arrays, by, strict=False)]


def _halving(n: int, roots: I64) -> tuple[I64, I64]:
    """Children of the n − 1 nodes over n subtrees, halved until single, and the range of subtrees of each node."""
    children, spans = np.empty((n - 1, 2), dtype=np.int64), np.empty((n - 1, 2), dtype=np.int64)
    spans[0] = 0, n
    n_nodes = 1
    for node in range(n - 1):
        first, last = spans[node]
        middle = (first + last) // 2
        for side, span in enumerate([(first, middle), (middle, last)]):
            if span[1] - span[0] == 1:
                children[node, side] = roots[span[0]]
            else:
                children[node, side], spans[n_nodes] = n_nodes, span
                n_nodes += 1
    return children, spans


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Arrays of some nodes, numbered from the first."""

    starts: I64
    ends: I64
    children: I64


class _Builder:
    """One call of `PartitionTree.build`."""

    def __init__(self, rows: NDArray[Any], weights: F64, kind: ScatterKind, leaf_size: int, n_threads: int) -> None:
        self.rows, self.weights, self.kind = rows, weights, kind
        self.leaf_size, self.n_threads = leaf_size, n_threads
        n = len(rows)
        self.order: NDArray[np.integer] = np.arange(n, dtype=np.int32 if n < 2**31 else np.int64)
        self.projections = np.empty(n)

    def tree(self, first_row: int) -> PartitionTree:
        nodes, spans = self._nodes()
        order = self.order if first_row == 0 else self.order.astype(np.int64) + first_row
        return PartitionTree(order, nodes.starts, nodes.ends, nodes.children, *self._sums(nodes, spans), self.kind)

    def _nodes(self) -> tuple[_Nodes, list[tuple[int, int]]]:
        """All nodes, and the spans in which statistics are summed up: the subtrees side by side, then the top."""
        top = self._split_top()
        roots = np.flatnonzero(top.children[:, 0] < 0)
        subtrees = list(ordered_map(lambda root: self._grow(top, int(root)), roots, self.n_threads))
        del self.projections
        # A subtree's root is a node of the top already; the others are numbered on from there.
        before = len(top.starts) + np.cumsum([0, *(len(subtree.starts) - 1 for subtree in subtrees)])
        renumbered = [
            np.where(subtree.children < 0, -1, subtree.children + first - 1)
            for subtree, first in zip(subtrees, before, strict=False)
        ]
        for root, children in zip(roots, renumbered, strict=True):
            top.children[root] = children[0]
        nodes = _Nodes(
            np.concatenate([top.starts, *(subtree.starts[1:] for subtree in subtrees)]),
            np.concatenate([top.ends, *(subtree.ends[1:] for subtree in subtrees)]),
            np.concatenate([top.children, *(children[1:] for children in renumbered)]),
        )
        return nodes, [*zip(before[:-1].tolist(), before[1:].tolist(), strict=True), (0, len(top.starts))]

    def _split_top(self) -> _Nodes:
        """The root, the nodes too large for one task and their children, level by level."""
        limit = max(SMALLEST_SUBTREE, len(self.rows) // SUBTREES, self.leaf_size)
        spans, children = [(0, len(self.rows))], [(-1, -1)]
        level = [0]
        while level := [node for node in level if spans[node][1] - spans[node][0] > limit]:
            below: list[int] = []
            middles = list(ordered_map(self._split, [spans[node] for node in level], self.n_threads))
            for node, middle in zip(level, middles, strict=True):
                begin, end = spans[node]
                if middle == begin:
                    continue
                children[node] = len(spans), len(spans) + 1
                below += children[node]
                spans += [(begin, middle), (middle, end)]
                children += [(-1, -1), (-1, -1)]
            level = below
        bounds = np.array(spans, dtype=np.int64)
        return _Nodes(bounds[:, 0].copy(), bounds[:, 1].copy(), np.array(children, dtype=np.int64))

    def _split(self, span: tuple[int, int]) -> int:
        scratch = np.empty((3, self.rows.shape[1]))
        return int(kernels.split_node(self.rows, self.order, self.weights, *span, self.projections, *scratch))

    def _grow(self, top: _Nodes, root: int) -> _Nodes:
        """All nodes under a node of the top, itself first."""
        n_rows = int(top.ends[root] - top.starts[root])
        starts, ends = np.empty(2 * n_rows, dtype=np.int64), np.empty(2 * n_rows, dtype=np.int64)
        children = np.empty((2 * n_rows, 2), dtype=np.int64)
        starts[0], ends[0] = top.starts[root], top.ends[root]
        n_nodes = kernels.grow_subtree(
            self.rows, self.order, self.weights, self.leaf_size, starts, ends, children,
            self.projections, *np.empty((3, self.rows.shape[1])),
        )  # fmt: skip
        return _Nodes(starts[:n_nodes].copy(), ends[:n_nodes].copy(), children[:n_nodes].copy())

    def _sums(self, nodes: _Nodes, spans: list[tuple[int, int]]) -> tuple[F64, F64, F64]:
        """Weights, means and scatter, the last span after all the others."""
        n_nodes, D = len(nodes.starts), self.rows.shape[1]
        weights, means = np.empty(n_nodes), np.empty((n_nodes, D))
        scatter = np.zeros((n_nodes, packed_width(self.kind, D)))

        def add(span: tuple[int, int]) -> None:
            kernels.sum_up(
                self.rows, self.weights, nodes.starts, nodes.ends, nodes.children, *span,
                weights, means, scatter, np.empty(D),
            )  # fmt: skip

        run_all(add, spans[:-1], self.n_threads)
        add(spans[-1])
        return weights, means, scatter
