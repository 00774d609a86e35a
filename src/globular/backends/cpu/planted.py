"""A shard's tree and frontier, and the passes over its chunks: shared by rows in memory and streamed rows."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu import chunks, claims, truncated_chunks
from globular.data.tree import Frontier, PartitionTree
from globular.data.tree.parts import best_parts, parts_below
from globular.model.chunks import BoundGap, ChunkGains, Chunks, NodeValue, ShareRule, Within
from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph
from globular.model.search import Search
from globular.model.statistics import F64, SoftStatistics, TruncatedStatistics


class PlantedShard(ABC):
    """Plants a tree when first asked to, and keeps it."""

    n_threads: int
    _planted: tuple[ScatterKind, int, Frontier] | None = None

    @abstractmethod
    def build_tree(self, kind: ScatterKind, leaf_size: int) -> PartitionTree:
        """A tree over the rows of this shard."""

    @abstractmethod
    def read_rows(self, numbers: NDArray[np.integer]) -> tuple[F64, F64]:
        """Rows by their numbers in that tree, and their weights."""

    @property
    def frontier(self) -> Frontier:
        """The cells that the tree is opened into."""
        if self._planted is None:
            raise RuntimeError("there is no tree over these rows yet; call plant_tree first")
        return self._planted[2]

    def plant_tree(self, scatter: ScatterKind, leaf_size: int, *, largest: float = np.inf, depth: int = 0) -> int:
        if self._planted is None or self._planted[:2] != (scatter, leaf_size):
            frontier = Frontier(self.build_tree(scatter, leaf_size), self.read_rows)
            self._planted = scatter, leaf_size, frontier
        self.frontier.reset(largest, depth)
        return len(self.frontier)

    def cell_pass(
        self, mixture: GaussianParameters, *, rule: ShareRule = "optimal", within: Within | None = None
    ) -> SoftStatistics:
        return chunks.cell_pass(self.frontier, mixture, rule, within, self.n_threads)

    def truncated_cell_pass(
        self, mixture: GaussianParameters, graph: Graph, search: Search
    ) -> TruncatedStatistics[SoftStatistics]:
        return truncated_chunks.truncated_cell_pass(self.frontier, mixture, graph, search, self.n_threads)

    def gain_pass(self, mixture: GaussianParameters, n: int, *, truncated: bool = False) -> ChunkGains:
        if truncated:
            return truncated_chunks.truncated_gain_pass(self.frontier, mixture, n, self.n_threads)
        return chunks.gain_pass(self.frontier, mixture, n, self.n_threads)

    def gap_pass(self, mixture: GaussianParameters, *, truncated: bool = False) -> BoundGap:
        if truncated:
            return truncated_chunks.truncated_gap_pass(self.frontier, mixture, self.n_threads)
        return chunks.gap_pass(self.frontier, mixture, self.n_threads)

    def expand_chunks(self, smallest: float) -> int:
        return chunks.expand_chunks(self.frontier, smallest)

    def open_rows(self) -> int:
        while len(self.frontier.nodes):
            self.frontier.open(np.arange(len(self.frontier.nodes)))
        return len(self.frontier)

    def claim_chunks(self, mixture: GaussianParameters, components: NDArray[np.integer]) -> list[Chunks]:
        return claims.claim_chunks(self.frontier, mixture, components, self.n_threads)

    def open_claimed(self, mixture: GaussianParameters, components: NDArray[np.integer], least: int) -> int:
        return claims.open_claimed(self.frontier, mixture, components, least, self.n_threads)

    def best_nodes(self, value: NodeValue, gain: float) -> Chunks:
        self.frontier.parted = best_parts(self.frontier.tree, value, gain, self.n_threads)
        return self.frontier.tree.chunks(parts_below(self.frontier.tree, self.frontier.parted))

    def open_best(self) -> int:
        frontier = self.frontier
        while len(places := np.flatnonzero(frontier.parted[frontier.nodes])):
            frontier.open(places)
        return len(frontier)

    def forget_members(self) -> None:
        self.frontier.members = None

    def take_chunks(self) -> Chunks:
        return self.frontier.chunks
