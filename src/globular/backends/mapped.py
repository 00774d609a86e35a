"""Map and add: a shard made of parts, each of which is a shard itself.

Every pass is the same pass over all parts in order, its statistics added up. `split` holds its parts, `stream` loads
them one after the other, `dask` has them on workers; all inherit the passes from here. A pass is one line, the name of
the pass and its arguments; how it is carried to the parts and how results are put together is up to the subclass.

Labels equal those of one shard over all rows bit for bit, because a label depends on its own row and the centres only.
Sums are added in another order than on one shard, so they agree to rounding (about 1e-15 of their size), not to the
bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import add
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from globular.backends.protocol import Index, LocalShard, Route, Shard
from globular.model.cells import CellTree, CenterCells
from globular.model.chunks import BoundGap, ChunkGains, Chunks, NodeValue, ShareRule, Within
from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph
from globular.model.groups import CenterGroups
from globular.model.search import Search
from globular.model.statistics import (
    F64,
    CellStatistics,
    Claim,
    FarRows,
    HardStatistics,
    PotentialStatistics,
    ProbedStatistics,
    SoftStatistics,
    TruncatedStatistics,
)
from globular.threads import cached_property

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Additive(Protocol):
    """What adds up: statistics and arrays."""

    def __add__(self, other: Any, /) -> Any: ...


Sum = TypeVar("Sum", bound=Additive)


def call_part(
    part: Shard,
    function: Callable[Concatenate[Shard, Arguments], Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """`function(part, …)`; a pass of the protocol stands for the part's own."""
    name = getattr(function, "__name__", "")
    if getattr(Shard, name, None) is function:
        return getattr(part, name)(*args, **kwargs)
    return function(part, *args, **kwargs)


class FarthestOf:
    """Join far rows and keep the n farthest."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, one: FarRows, other: FarRows) -> FarRows:
        return (one + other).first(self.n)


class LargestOf:
    """Join gains and keep the n largest."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, one: ChunkGains, other: ChunkGains) -> ChunkGains:
        return (one + other).first(self.n)


def weighted_moments(part: Shard) -> tuple[float, F64, F64]:
    """Σ w, and mean and variance of every column, which are zero where nothing counts."""
    if part.total_weight == 0:
        return 0.0, np.zeros(part.n_columns), np.zeros(part.n_columns)
    return part.total_weight, *part.column_moments()


def on_arrays(part: Shard, function: Callable[..., Result], *args: Any) -> list[Result]:
    """A function of rows in memory, for a part that has them there or reads them piece by piece."""
    if isinstance(part, MappedShard):
        return part.map_arrays(function, *args)
    return [function(part, *args)]


class MappedShard(ABC):
    """The passes; what is answered from per-point state alone is left to the subclasses."""

    @property
    @abstractmethod
    def passes(self) -> Mapping[str, str]:
        """See `Shard.passes`."""

    @property
    def casts_ballots(self) -> bool:
        """See `Shard.casts_ballots`: ballots would hold the rows of all parts."""
        return False

    @abstractmethod
    def _each(
        self,
        function: Callable[Concatenate[Shard, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> list[Result]:
        """What a pass, or another function of a shard, returns for every part in order."""

    @abstractmethod
    def _join(
        self,
        merge: Callable[[Result, Result], Result],
        function: Callable[Concatenate[Shard, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """The same put together by `merge`."""

    def _add(
        self, function: Callable[Concatenate[Shard, Arguments], Sum], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Sum:
        """The same added up."""
        return self._join(add, function, *args, **kwargs)

    def map_arrays(self, function: Callable[..., Result], *args: Any) -> list[Result]:
        """A function of a shard in memory, for one after the other in row order, wherever they are."""
        return [result for of_part in self._each(on_arrays, function, *args) for result in of_part]

    def hard_pass(self, centers: F64, *, accumulate: bool = True) -> HardStatistics:
        return self._add(Shard.hard_pass, centers, accumulate=accumulate)

    def bounded_pass(self, centers: F64, groups: CenterGroups, shifts: F64 | None) -> HardStatistics:
        return self._add(Shard.bounded_pass, centers, groups, shifts)

    def soft_pass(self, mixture: GaussianParameters) -> SoftStatistics:
        return self._add(Shard.soft_pass, mixture)

    def kept_pass(self, mixture: GaussianParameters, *, renew: bool) -> SoftStatistics:
        return self._add(Shard.kept_pass, mixture, renew=renew)

    def claim_pass(
        self, mixture: GaussianParameters, components: Index, rates: F64, seed: int, *, kept: bool = False
    ) -> list[Claim]:
        of_parts = self._each(Shard.claim_pass, mixture, components, rates, seed, kept=kept)
        return [Claim.join([claims[i] for claims in of_parts]) for i in range(len(components))]

    def truncated_pass(
        self, centers: F64, graph: Graph, search: Search, *, moved_only: bool = False
    ) -> TruncatedStatistics[HardStatistics]:
        return self._add(Shard.truncated_pass, centers, graph, search, moved_only=moved_only)

    def truncated_soft_pass(
        self, mixture: GaussianParameters, graph: Graph, search: Search
    ) -> TruncatedStatistics[SoftStatistics]:
        return self._add(Shard.truncated_soft_pass, mixture, graph, search)

    def probing_pass(
        self, centers: F64, cells: CenterCells, n_probes: int, *, accumulate: bool = True
    ) -> HardStatistics:
        return self._add(Shard.probing_pass, centers, cells, n_probes, accumulate=accumulate)

    def probing_soft_pass(
        self, mixture: GaussianParameters, cells: CenterCells | None, n_probes: int, n_candidates: int
    ) -> ProbedStatistics:
        return self._add(Shard.probing_soft_pass, mixture, cells, n_probes, n_candidates)

    def scatter_labels(self, n_clusters: int, seed: int) -> None:
        self._each(Shard.scatter_labels, n_clusters, seed)

    def label_by_seeds(self) -> None:
        self._each(Shard.label_by_seeds)

    def label_sums(self, n_clusters: int) -> HardStatistics:
        return self._add(Shard.label_sums, n_clusters)

    def relabel(self, names: NDArray[np.int32]) -> None:
        self._each(Shard.relabel, names)

    def d2_pass(self, centers: F64, *, restart: bool = False) -> PotentialStatistics:
        return self._add(Shard.d2_pass, centers, restart=restart)

    def trial_pass(self, centers: F64) -> F64:
        return self._add(Shard.trial_pass, centers)

    def routed_pass(self, tree: CellTree, *, route: Route = "top", accumulate: bool = True) -> CellStatistics:
        return self._add(Shard.routed_pass, tree, route=route, accumulate=accumulate)

    def label_errors(self, n_clusters: int) -> F64:
        return self._add(Shard.label_errors, n_clusters)

    def plant_tree(self, scatter: ScatterKind, leaf_size: int, *, largest: float = np.inf, depth: int = 0) -> int:
        return self._add(Shard.plant_tree, scatter, leaf_size, largest=largest, depth=depth)

    def cell_pass(
        self, mixture: GaussianParameters, *, rule: ShareRule = "optimal", within: Within | None = None
    ) -> SoftStatistics:
        return self._add(Shard.cell_pass, mixture, rule=rule, within=within)

    def truncated_cell_pass(
        self, mixture: GaussianParameters, graph: Graph, search: Search
    ) -> TruncatedStatistics[SoftStatistics]:
        return self._add(Shard.truncated_cell_pass, mixture, graph, search)

    def gain_pass(self, mixture: GaussianParameters, n: int, *, truncated: bool = False) -> ChunkGains:
        return self._join(LargestOf(n), Shard.gain_pass, mixture, n, truncated=truncated)

    def gap_pass(self, mixture: GaussianParameters, *, truncated: bool = False) -> BoundGap:
        return self._add(Shard.gap_pass, mixture, truncated=truncated)

    def expand_chunks(self, smallest: float) -> int:
        return self._add(Shard.expand_chunks, smallest)

    def open_rows(self) -> int:
        return self._add(Shard.open_rows)

    def claim_chunks(self, mixture: GaussianParameters, components: NDArray[np.integer]) -> list[Chunks]:
        of_parts = self._each(Shard.claim_chunks, mixture, components)
        return [Chunks.join([claims[i] for claims in of_parts]) for i in range(len(components))]

    def open_claimed(self, mixture: GaussianParameters, components: NDArray[np.integer], least: int) -> int:
        return self._add(Shard.open_claimed, mixture, components, least)

    def best_nodes(self, value: NodeValue, gain: float) -> Chunks:
        return self._add(Shard.best_nodes, value, gain)

    def open_best(self) -> int:
        return self._add(Shard.open_best)

    def forget_members(self) -> None:
        self._each(Shard.forget_members)

    def take_chunks(self) -> Chunks:
        return self._add(Shard.take_chunks)

    def farthest(self, n: int, centers: F64) -> FarRows:
        return self._join(FarthestOf(n), Shard.farthest, n, centers)

    @cached_property
    def _moments(self) -> tuple[F64, F64]:
        found = self._each(weighted_moments)
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


class PartsInTurn(MappedShard):
    """Parts that are at hand one after the other."""

    @abstractmethod
    def parts(self) -> Iterator[Shard]:
        """The parts in row order, with rows, weights and per-point state."""

    def _each(
        self,
        function: Callable[Concatenate[Shard, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> list[Result]:
        return [call_part(part, function, *args, **kwargs) for part in self.parts()]

    def _join(
        self,
        merge: Callable[[Result, Result], Result],
        function: Callable[Concatenate[Shard, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        # from the first part to the last: one sum is held, not many
        return reduce(merge, (call_part(part, function, *args, **kwargs) for part in self.parts()))
