"""A frontier: the cells that a partition tree is opened into at the moment.

A frontier cuts every way from the root to a row exactly once, so its cells are a partition of the rows. They are nodes
of the tree, handed out as `Chunks`, and, where a leaf was opened, its single rows. Opening a node replaces it with its
two children; opening a leaf replaces it with its rows. Per-cell state (the components that a cell keeps) is inherited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from globular.model.chunks import Chunks
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64
from globular.passes.tree.partition import PartitionTree
from globular.seam.tree_passes import FrontierState, Gains

ReadRows = Callable[[NDArray[np.integer]], tuple[F64, F64]]
"""Rows of these numbers, and their weights."""


_EVERYWHERE = slice(None)


@dataclass(frozen=True, slots=True)
class Children:
    """What some nodes would be replaced with."""

    chunks: Chunks
    parents: I64
    """For each of the chunks the place of its parent among the nodes asked for; ascending."""


class Frontier:
    """The cells of a tree, at first its root alone."""

    def __init__(self, tree: PartitionTree, read: ReadRows, leaf_size: int = 1, n_threads: int = 1) -> None:
        self.tree = tree
        self.leaf_size = leaf_size
        self._read, self._n_threads = read, n_threads
        self._has_scatter = tree.scatter[:, 0] != 0.0  # says it of nearly all nodes
        others = np.flatnonzero(~self._has_scatter)
        self._has_scatter[others] = tree.scatter[others].any(axis=1)
        self.gains: F64 | None = None
        """Per node, what opening it would gain for every cell it adds, as left by a pass; NaN where a node is new."""
        self.gains_of: Gains | None = None
        """The pass that has left these gains."""
        self.members: NDArray[np.int32] | None = None
        """Components that each cell keeps, (n_cells, C′), nodes first; inherited by children."""
        self.densities: tuple[GaussianParameters, F64] | None = None
        """A mixture and log Σ_c exp ⟨log p(c, x)⟩ of every cell under it, kept by a pass until the frontier changes."""
        self.parted = np.zeros(tree.n_nodes, dtype=bool)
        """Nodes of the tree that a search for the best ones has left for their children."""
        self.reset()

    def reset(self, largest: float = np.inf, depth: int = 0) -> None:
        """Back to the highest nodes of a weight of at most `largest` and at least `depth` deep."""
        D = self.tree.means.shape[1]
        self._set(self.tree.cut(largest, depth), Chunks.of_rows(np.empty((0, D)), np.empty(0), self.tree.kind))
        self._leaves = np.empty(0, dtype=np.int64)
        self.members, self.gains, self.gains_of = None, None, None

    @property
    def state(self) -> FrontierState:
        """What `restore` needs."""
        return FrontierState(self.nodes, self._leaves, self.members, self.gains)

    def restore(self, state: FrontierState, gains_of: Gains | None) -> None:
        """Back to a state of another frontier of the same tree."""
        self.reset()
        self._set(state.nodes, self._rows_of(state.leaves) if len(state.leaves) else self.row_chunks)
        self._leaves = state.leaves
        self.members, self.gains, self.gains_of = state.members, state.gains, gains_of

    def _set(self, nodes: I64, rows: Chunks) -> None:
        self.nodes = nodes
        self._node_chunks: Chunks | None = None
        self.spread = self._has_scatter[nodes]
        """Whether the rows of a node differ, (n_nodes,)."""
        self._is_leaf, self._sizes = self.tree.is_leaf(nodes), self.tree.sizes(nodes)
        self.row_chunks = rows
        self.densities = None

    def __len__(self) -> int:
        return len(self.nodes) + len(self.row_chunks)

    @property
    def offset(self) -> F64:
        """Mean of all rows, (D,): what passes subtract so that large offsets do not cancel."""
        return self.tree.means[0]

    @property
    def node_chunks(self) -> Chunks:
        """The cells that are nodes, copied when somebody asks: what opens cells again and again looks at few."""
        if self._node_chunks is None:
            self._node_chunks = self.tree.chunks(self.nodes, self._n_threads)
        return self._node_chunks

    def some_chunks(self, places: I64) -> Chunks:
        """Those at these places of `nodes`."""
        return self.tree.chunks(self.nodes[places], self._n_threads)

    @property
    def chunks(self) -> Chunks:
        """All cells: nodes, then single rows."""
        return self.node_chunks + self.row_chunks

    def parts(self) -> tuple[Chunks, Chunks]:
        """The same in two: nodes, and rows that have no scatter."""
        return self.node_chunks, self.row_chunks

    def n_children(self, places: I64 | slice = _EVERYWHERE) -> I64:
        """Cells that would take the place of each of these nodes."""
        return np.where(self._is_leaf[places], self._sizes[places], 2)

    def children(self, places: I64, n_threads: int = 1) -> list[Children]:
        """The parts of the nodes at these places of `nodes`: first nodes below inner ones, then rows of leaves."""
        nodes, leaves = self.nodes[places], self._is_leaf[places]
        inner = np.flatnonzero(~leaves)
        found = [Children(self.tree.chunks(self.tree.children[nodes[inner]].ravel(), n_threads), np.repeat(inner, 2))]
        opened = np.flatnonzero(leaves)
        if len(opened):
            parents = np.repeat(opened, self._sizes[places[opened]])
            found.append(Children(self._rows_of(nodes[opened]), parents))
        return [part for part in found if len(part.parents)]

    def _rows_of(self, leaves: I64) -> Chunks:
        sizes = self.tree.sizes(leaves)
        ranks = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows, weights = self._read(self.tree.order[np.repeat(self.tree.starts[leaves], sizes) + ranks])
        return Chunks.of_rows(rows, weights, self.tree.kind)

    def sample(self, places: I64, n: I64, rng: np.random.Generator) -> Children:
        """Up to n rows of each node at these places, one anywhere in each of n equal stretches of the tree's order.

        Neighbours in the tree lie side by side, outer rows at the ends: the middles of the stretches would miss them.
        """
        nodes, sizes = self.nodes[places], self._sizes[places]
        taken = np.minimum(sizes, n)
        parents = np.repeat(np.arange(len(places)), taken)
        ranks = np.arange(len(parents)) - np.repeat(np.cumsum(taken) - taken, taken)
        within = (ranks + rng.random(len(ranks))) * (sizes[parents] / taken[parents])
        positions = self.tree.starts[nodes][parents] + np.minimum(within.astype(np.int64), sizes[parents] - 1)
        rows, weights = self._read(self.tree.order[positions])
        return Children(Chunks.of_rows(rows, weights, self.tree.kind), parents)

    def open(self, places: I64) -> None:
        """Replace the nodes at these places with their children."""
        stay = np.delete(np.arange(len(self.nodes)), places)
        leaves = self._is_leaf[places]
        inner, opened = places[~leaves], places[leaves]
        below = self.tree.children[self.nodes[inner]].ravel()
        rows = self.row_chunks
        by_row = np.empty(0, dtype=np.int64)
        for part in self.children(opened):
            by_row, rows = opened[part.parents], rows + part.chunks
        if self.members is not None:
            of_rows = np.arange(len(self.nodes), len(self))
            self.members = self.members[np.concatenate([stay, np.repeat(inner, 2), of_rows, by_row])]
        if self.gains is not None:
            self.gains = np.concatenate([self.gains[stay], np.full(len(below), np.nan)])
        self._leaves = np.concatenate([self._leaves, self.nodes[opened]])
        self._set(np.concatenate([self.nodes[stay], below]), rows)
