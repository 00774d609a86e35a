"""Data larger than memory: rows come from a source block by block, per-row state stays.

A pass loads one part after the other, lays a `CpuShard` with a view of the state over it, and merges the results.
While a part is worked on, the next is read by a thread of its own. Memory: two parts, the per-row state (4 bytes a row
for labels, more for seeding and bounds) and what C×D needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.backends.blocks import BlockShard
from globular.backends.cpu.shard import CpuShard
from globular.backends.host import PART_BYTES
from globular.backends.many.batches import StreamedBatch
from globular.data.blocks import Block, Matrix, Source, working_dtype
from globular.data.some_rows import check_rows
from globular.model.nested import NestedStatistics
from globular.model.statistics import F64
from globular.seam.among import Need
from globular.seam.passes import AssignBatch, Index
from globular.seam.state import PointState
from globular.threads import cached_property, read_ahead

READ_ANEW = "rows that are read anew remember nothing"


class StreamShard(BlockShard):
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
        super().__init__((source.n_rows, source.n_columns), weights, n_threads=n_threads, first_row=first_row)
        self.source = source
        self.unit_rows = unit_rows
        self.rows_per_part = rows_per_part or max(1, PART_BYTES // (source.n_columns * source.dtype.itemsize))
        self._checked = False

    @property
    def dtype(self) -> np.dtype:
        return working_dtype(self.source.dtype)

    def parts(self) -> Iterator[CpuShard]:
        for block in read_ahead(self.source.blocks(self.rows_per_part)):
            yield self._part(block)
        self._checked = True

    def row_blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        for part in self.parts():
            yield part.first_row - self.first_row, next(part.row_blocks())[1]

    def _part(self, block: Block) -> CpuShard:
        if not self._checked:
            check_rows(block.rows, self.source, np.arange(block.start, block.stop))
        part = self.part_of(block.rows, slice(block.start, block.stop), self.state.view(block.start, block.stop))
        part.first_row = self.first_row + block.start
        return part

    def part_of(self, rows: Matrix, numbers: Index | slice, state: PointState) -> CpuShard:
        """A shard of the rows with these numbers, which the caller has read and keeps the state of."""
        weights = self.weights[numbers] if len(self.weights) else None
        return CpuShard(rows, weights, unit_rows=self.unit_rows, n_threads=self.n_threads, state=state)

    @cached_property
    def lacks(self) -> Mapping[Need, str]:
        first = self.subset(np.zeros(1, dtype=np.intp))
        return {**first.lacks, "rows that stay": READ_ANEW, "sparse rows": READ_ANEW}

    @cached_property
    def batch(self) -> StreamedBatch:
        """The rows that nested batches have reached."""
        return StreamedBatch(self.source, self.rows_per_part, self.part_of, self.labels, self.first_row)

    def take_rows(self, indices: Index) -> F64:
        return self.subset(indices).take(np.arange(len(indices)))

    def subset(self, indices: Index) -> CpuShard:
        return self.part_of(self.source.take(indices), indices, PointState(len(indices)))


@StreamShard.implements(AssignBatch)
def assign_batch(shard: StreamShard, work: AssignBatch) -> NestedStatistics:
    """The rows of the batch alone are read."""
    return shard.batch.run(work)
