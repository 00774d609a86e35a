"""Data larger than memory: rows come from a source block by block, per-point state stays.

A pass loads one part after the other, lays a `CpuShard` with a view of the state over it, and adds the statistics up.
While a part is worked on, the next is read by a thread of its own. Memory: two parts, the per-point state (4 bytes a
row for labels, more for seeding and bounds) and what C×D needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from globular.backends.batches import StreamedBatch
from globular.backends.cpu import CpuShard
from globular.backends.cpu.planted import PlantedShard
from globular.backends.cpu.projected import write_coordinates
from globular.backends.mapped import PartsInTurn
from globular.backends.protocol import Index, Labels
from globular.backends.state import PointState
from globular.data.blocks import Block, Matrix, Source, working_dtype
from globular.data.some_rows import check_rows
from globular.data.tree import PartitionTree
from globular.model.columns import ColumnMeans
from globular.model.covariances import ScatterKind
from globular.model.nested import Batch, NestedSearch, NestedStatistics
from globular.model.statistics import F64, PotentialStatistics
from globular.model.subspace import Subspace
from globular.threads import read_ahead

PART_BYTES = 128 * 2**20


class StreamShard(PlantedShard, PartsInTurn):
    """A source read anew for every pass."""

    def __init__(
        self,
        source: Source,
        weights: F64 | None = None,
        *,
        unit_rows: bool = False,
        n_threads: int = 1,
        rows_per_part: int | None = None,
        first_row: int = 0,
    ) -> None:
        self.source = source
        self.first_row = first_row
        self.n_rows, self.n_columns = source.n_rows, source.n_columns
        self.n_threads = n_threads
        self.unit_rows = unit_rows
        self.rows_per_part = rows_per_part or max(1, PART_BYTES // (source.n_columns * source.dtype.itemsize))
        self.state = PointState(self.n_rows)
        self._weights = weights
        self._n_seeds = 0
        self._checked = False
        self._batch: StreamedBatch | None = None

    def parts(self) -> Iterator[CpuShard]:
        for block in read_ahead(self.source.blocks(self.rows_per_part)):
            yield self._part(block)
        self._checked = True

    def _part(self, block: Block) -> CpuShard:
        if not self._checked:
            check_rows(block.rows, self.source, np.arange(block.start, block.stop))
        span = slice(block.start, block.stop)
        part = self._shard(block.rows, None if self._weights is None else self._weights[span])
        part.state = self.state.view(block.start, block.stop)
        part.first_row = self.first_row + block.start
        part.n_seeds = self._n_seeds
        return part

    def _shard(self, rows: Matrix, weights: F64 | None) -> CpuShard:
        return CpuShard(rows, weights, unit_rows=self.unit_rows, n_threads=self.n_threads)

    @property
    def _per_point(self) -> CpuShard:
        """The weights and the state of all rows, without the rows."""
        shard = CpuShard(np.empty((self.n_rows, 0), dtype=np.float32), self._weights, n_threads=self.n_threads)
        shard.state = self.state
        shard.first_row = self.first_row
        shard.n_seeds = self._n_seeds
        return shard

    @property
    def passes(self) -> Mapping[str, str]:
        known = self._shard(self.source.take(np.zeros(1, dtype=np.intp)), None).passes
        return {**known, "kept_pass": "rows that are read anew remember nothing"}

    @property
    def total_weight(self) -> float:
        return self._per_point.total_weight

    @property
    def labels(self) -> Labels:
        return self._per_point.labels

    def nested_pass(
        self, centers: F64 | ColumnMeans, origin: F64, batch: Batch, search: NestedSearch
    ) -> NestedStatistics:
        if self._batch is None:
            self._batch = StreamedBatch(self.source, self.rows_per_part, self.part_of)
        return self._batch.nested_pass(centers, origin, batch, search, self.labels)

    def part_of(self, rows: Matrix, numbers: Index, state: PointState) -> CpuShard:
        """A part of the rows with these numbers, which the caller has read and keeps the state of."""
        part = self._shard(rows, None if self._weights is None else self._weights[numbers])
        part.state = state
        return part

    def pick(self, indices: Index) -> CpuShard:
        return self.part_of(self.source.take(indices), indices, PointState(len(indices)))

    def within(self, subspace: Subspace) -> CpuShard:
        coordinates = np.empty((self.n_rows, subspace.dimension), dtype=working_dtype(self.source.dtype))
        begin = 0
        for part in self.parts():
            write_coordinates(part, subspace, coordinates[begin : begin + part.n_rows])
            begin += part.n_rows
        return CpuShard(
            coordinates, self._weights, n_threads=self.n_threads, state=self.state, first_row=self.first_row
        )

    def label_by_seeds(self) -> None:
        self._per_point.label_by_seeds()

    def scatter_labels(self, n_clusters: int, seed: int) -> None:
        self._per_point.scatter_labels(n_clusters, seed)

    def relabel(self, names: NDArray[np.int32]) -> None:
        self._per_point.relabel(names)

    def d2_pass(self, centers: F64, *, restart: bool = False) -> PotentialStatistics:
        statistics = super().d2_pass(centers, restart=restart)
        self._n_seeds = len(centers) + (0 if restart else self._n_seeds)
        return statistics

    def locate(self, masses: F64) -> Index:
        return self._per_point.locate(masses)

    def locate_weight(self, masses: F64) -> Index:
        return self._per_point.locate_weight(masses)

    def seed_weights(self, n_seeds: int) -> F64:
        return self._per_point.seed_weights(n_seeds)

    def label_errors(self, n_clusters: int) -> F64:
        return self._per_point.label_errors(n_clusters)

    def take(self, indices: Index) -> F64:
        return self._shard(self.source.take(indices), None).take(np.arange(len(indices)))

    def take_potential(self, indices: Index) -> F64:
        return self._per_point.take_potential(indices)

    def take_weights(self, indices: Index) -> F64:
        return self._per_point.take_weights(indices)

    def build_tree(self, kind: ScatterKind, leaf_size: int) -> PartitionTree:
        return PartitionTree.join([part.build_tree(kind, leaf_size) for part in self.parts()])

    def read_rows(self, numbers: NDArray[np.integer]) -> tuple[F64, F64]:
        rows = np.asarray(numbers, dtype=np.intp)
        return self.take(rows), self.take_weights(rows)

    def local(self, rows: F64, weights: F64 | None = None) -> CpuShard:
        return self._per_point.local(rows, weights)
