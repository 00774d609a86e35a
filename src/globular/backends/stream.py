"""Data larger than memory: rows come from a source block by block, per-point state stays.

A pass loads one part after the other, lays a `CpuShard` with a view of the state over it, and adds the statistics up.
While a part is worked on, the next is read by a thread of its own. Memory: two parts, the per-point state (4 bytes a
row for labels, more for seeding and bounds; in files if `state_folder` is given) and what C×D needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu import CpuShard
from globular.backends.mapped import MappedShard
from globular.backends.protocol import Index, Labels
from globular.backends.state import PointState
from globular.data.blocks import Block, Matrix, Source
from globular.errors import DataError
from globular.model.statistics import F64, PotentialStatistics

PART_BYTES = 128 * 2**20


class StreamShard(MappedShard):
    """A source read anew for every pass."""

    def __init__(
        self,
        source: Source,
        weights: F64 | None = None,
        *,
        unit_rows: bool = False,
        n_threads: int = 1,
        rows_per_part: int | None = None,
        state_folder: Path | None = None,
    ) -> None:
        self.source = source
        self.n_rows, self.n_columns = source.n_rows, source.n_columns
        self.n_threads = n_threads
        self.unit_rows = unit_rows
        self.rows_per_part = rows_per_part or max(1, PART_BYTES // (source.n_columns * source.dtype.itemsize))
        self.state = PointState(self.n_rows, state_folder)
        self._weights = weights
        self._n_seeds = 0
        self._checked = False

    def parts(self) -> Iterator[CpuShard]:
        with ThreadPoolExecutor(1, thread_name_prefix="globular-read") as reader:
            blocks = self.source.blocks(self.rows_per_part)
            ahead = reader.submit(next, blocks, None)
            while (block := ahead.result()) is not None:
                ahead = reader.submit(next, blocks, None)
                yield self._part(block)
        self._checked = True

    def _part(self, block: Block) -> CpuShard:
        if not self._checked:
            self._check_finite(block)
        span = slice(block.start, block.stop)
        part = self._shard(block.rows, None if self._weights is None else self._weights[span])
        part.state = self.state.view(block.start, block.stop)
        part.first_row = block.start
        part.n_seeds = self._n_seeds
        return part

    def _shard(self, rows: Matrix, weights: F64 | None) -> CpuShard:
        return CpuShard(rows, weights, unit_rows=self.unit_rows, n_threads=self.n_threads)

    def _check_finite(self, block: Block) -> None:
        values = block.rows if isinstance(block.rows, np.ndarray) else block.rows.data
        with np.errstate(over="ignore", invalid="ignore"):
            total = values.sum(dtype=np.float64)  # one fast look; only a sum that is not finite asks for a closer one
        if not np.isfinite(total):
            bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
            if len(bad):
                where = f" in row {block.start + int(bad[0])}" if isinstance(block.rows, np.ndarray) else ""
                raise DataError(f"{self.source.name}: NaN or infinity{where}; remove or fill such values first")

    @property
    def _per_point(self) -> CpuShard:
        """The weights and the state of all rows, without the rows."""
        shard = CpuShard(np.empty((self.n_rows, 0), dtype=np.float32), self._weights, n_threads=self.n_threads)
        shard.state = self.state
        shard.n_seeds = self._n_seeds
        return shard

    @property
    def passes(self) -> Mapping[str, str]:
        return self._shard(self.source.take(np.zeros(1, dtype=np.intp)), None).passes

    @property
    def total_weight(self) -> float:
        return self._per_point.total_weight

    @property
    def labels(self) -> Labels:
        return self._per_point.labels

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

    def local(self, rows: F64, weights: F64 | None = None) -> CpuShard:
        return self._per_point.local(rows, weights)
