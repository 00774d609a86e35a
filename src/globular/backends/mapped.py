"""Map and add: a shard made of parts, each of which is a shard itself.

Every pass is the same pass over all parts in order, its statistics added up. `split` holds its parts, `stream` loads
them one after the other; both inherit the passes from here.

Labels equal those of one shard over all rows bit for bit, because a label depends on its own row and the centres only.
Sums are added in another order than on one shard, so they agree to rounding (about 1e-15 of their size), not to the
bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from globular.backends.protocol import Index, LocalShard, Route, Shard, add_up
from globular.model.cells import CellTree, CenterCells
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph
from globular.model.groups import CenterGroups
from globular.model.search import Search
from globular.model.statistics import (
    F64,
    CellStatistics,
    FarRows,
    HardStatistics,
    PotentialStatistics,
    SoftStatistics,
    TruncatedStatistics,
)


class MappedShard(ABC):
    """The passes over `parts()`; what is answered from per-point state alone is left to the subclasses."""

    @abstractmethod
    def parts(self) -> Iterator[Shard]:
        """The parts in row order, with rows, weights and per-point state."""

    @property
    @abstractmethod
    def passes(self) -> Mapping[str, str]:
        """See `Shard.passes`."""

    def hard_pass(self, centers: F64, *, accumulate: bool = True) -> HardStatistics:
        return add_up(part.hard_pass(centers, accumulate=accumulate) for part in self.parts())

    def bounded_pass(self, centers: F64, groups: CenterGroups, shifts: F64 | None) -> HardStatistics:
        return add_up(part.bounded_pass(centers, groups, shifts) for part in self.parts())

    def soft_pass(self, mixture: GaussianParameters) -> SoftStatistics:
        return add_up(part.soft_pass(mixture) for part in self.parts())

    def truncated_pass(
        self, centers: F64, graph: Graph, search: Search, *, moved_only: bool = False
    ) -> TruncatedStatistics[HardStatistics]:
        return add_up(part.truncated_pass(centers, graph, search, moved_only=moved_only) for part in self.parts())

    def truncated_soft_pass(
        self, mixture: GaussianParameters, graph: Graph, search: Search
    ) -> TruncatedStatistics[SoftStatistics]:
        return add_up(part.truncated_soft_pass(mixture, graph, search) for part in self.parts())

    def probing_pass(
        self, centers: F64, cells: CenterCells, n_probes: int, *, accumulate: bool = True
    ) -> HardStatistics:
        return add_up(part.probing_pass(centers, cells, n_probes, accumulate=accumulate) for part in self.parts())

    def scatter_labels(self, n_clusters: int, seed: int) -> None:
        for part in self.parts():
            part.scatter_labels(n_clusters, seed)

    def relabel(self, names: NDArray[np.int32]) -> None:
        for part in self.parts():
            part.relabel(names)

    def d2_pass(self, centers: F64, *, restart: bool = False) -> PotentialStatistics:
        return add_up(part.d2_pass(centers, restart=restart) for part in self.parts())

    def trial_pass(self, centers: F64) -> F64:
        return np.sum([part.trial_pass(centers) for part in self.parts()], axis=0)

    def routed_pass(self, tree: CellTree, *, route: Route = "top", accumulate: bool = True) -> CellStatistics:
        return add_up(part.routed_pass(tree, route=route, accumulate=accumulate) for part in self.parts())

    def label_errors(self, n_clusters: int) -> F64:
        return np.sum([part.label_errors(n_clusters) for part in self.parts()], axis=0)

    def farthest(self, n: int, centers: F64) -> FarRows:
        found: FarRows | None = None
        for part in self.parts():
            of_part = part.farthest(n, centers)
            found = of_part if found is None else (found + of_part).first(n)
        if found is None:
            raise ValueError("there are no parts to look for far rows in")
        return found

    @cached_property
    def _moments(self) -> tuple[F64, F64]:
        found = [(part.total_weight, *part.column_moments()) for part in self.parts() if part.total_weight > 0]
        total = sum(weight for weight, _, _ in found)
        mean = np.sum([weight * mean for weight, mean, _ in found], axis=0) / total
        spread = [weight * (variance + (part_mean - mean) ** 2) for weight, part_mean, variance in found]
        return mean, np.sum(spread, axis=0) / total

    def column_moments(self) -> tuple[F64, F64]:
        return self._moments

    @abstractmethod
    def local(self, rows: F64, weights: F64 | None = None) -> LocalShard:
        """See `Shard.local`."""

    @abstractmethod
    def take(self, indices: Index) -> F64:
        """See `Shard.take`."""
