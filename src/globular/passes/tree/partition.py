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
O(N D log N) time; see `growth` for how. What stays is 4 bytes a row (8 from 2³¹ rows on) and 8 (1 + D + S) + 32 bytes a
node, of which there are about 2.8 N / leaf_size.

Trees over different blocks of rows can be joined: a few nodes on top, and all the rest as it is. That is how a tree
over streamed data comes about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.model.chunks import Chunks
from globular.model.covariances import ScatterKind
from globular.model.statistics import F64, I64
from globular.passes.host import GATHERED_AT_ONCE
from globular.passes.tree.growth import Nodes, grow, halving, join
from globular.threads import SECONDS_PER_NUMBER, even_ranges, run_all


@dataclass(frozen=True, eq=False, slots=True)
class PartitionTree(Nodes):
    """The arrays of a tree; see the head of this module."""

    kind: ScatterKind

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
        cls,
        rows: NDArray[Any],
        weights: F64,
        kind: ScatterKind,
        leaf_size: int,
        *,
        first_row: int = 0,
        n_threads: int = 1,
    ) -> PartitionTree:
        """A tree over the rows; `weights` is empty for ones.

        The rows have the numbers first_row, first_row + 1, …
        """
        if leaf_size < 1:
            raise ValueError(f"leaf_size={leaf_size!r} must be at least 1")
        if len(rows) == 0:
            raise ValueError("a tree needs at least one row")
        grown = grow(rows, weights, kind.width(rows.shape[1]), leaf_size, n_threads)
        if first_row:
            grown = replace(grown, order=grown.order.astype(np.int64) + first_row)
        return cls._of(grown, kind)

    @classmethod
    def _of(cls, nodes: Nodes, kind: ScatterKind) -> PartitionTree:
        arrays: dict[str, Any] = {field.name: getattr(nodes, field.name) for field in fields(Nodes)}
        return cls(**arrays, kind=kind)

    @classmethod
    def join(cls, trees: Sequence[PartitionTree], n_threads: int = 1) -> PartitionTree:
        """One tree over the rows of all; each of them is a subtree of it."""
        if len(trees) == 1:
            return trees[0]
        return cls._of(join(trees, halving(len(trees)), n_threads, np.dtype(np.float64)), trees[0].kind)
