"""Data larger than memory: rows come from a source block by block, per-row state stays.

A pass loads one part after the other, lays a `CpuShard` with a view of the state over it, and merges the results.
While a part is worked on, the next is read by a thread of its own. Memory: two parts, the per-row state (4 bytes a row
for labels, more for seeding and bounds) and what C×D needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import Block, Matrix, Source, working_dtype
from globular.data.sources import check_rows
from globular.model.nested import Batch, NestedStatistics
from globular.model.statistics import F64, I64
from globular.passes.cpu.shard import BlockShard, CpuShard
from globular.passes.host import PART_BYTES
from globular.seam.among import Need
from globular.seam.passes import AssignBatch, Index
from globular.seam.shard import PointState
from globular.threads import cached_property, even_ranges, read_ahead

HELD_BYTES = 256 * 2**20
READ_ANEW = "rows that are read anew remember nothing"


@dataclass(slots=True)
class Piece:
    """Some rows of a source that joined a batch together."""

    rows: I64
    state: PointState
    held: Matrix | None = None
    checked: bool = False


class StreamedBatch:
    """The rows of a shard that the nested batches of one order have reached.

    Rows join a batch in runs of neighbouring rows (`Batch.run`), so that a small batch reads a few places of the file
    and not all of it. What has joined is kept as *pieces*, at most a part's worth of rows each: their numbers, and
    their labels and bounds, for as long as the batches nest. The first pieces keep their rows in memory as well, up to
    `HELD_BYTES`: while a batch is small, its iterations do not touch the disk at all. All others are read anew for
    every pass, the next one while the present one is worked on.
    """

    def __init__(self, shard: StreamShard) -> None:
        self._shard = shard
        self._seed: int | None = None
        self._size = 0
        self._pieces: list[Piece] = []
        self._held_bytes = 0

    def run(self, work: AssignBatch) -> NestedStatistics:
        """The pass on all pieces of the batch."""
        labels, found = self._shard.labels, NestedStatistics.none(*work.centers.shape)
        if work.search.restart:
            labels[:] = -1
        self._grow(work.rows.seen_from(self._shard.first_row), anew=work.search.restart)
        for piece, rows in zip(self._pieces, read_ahead(map(self._load, self._pieces)), strict=True):
            part = self._shard.part_of(rows, piece.rows, piece.state)
            part.labels[:] = labels[piece.rows]
            found += part.run(work.for_rows(len(piece.rows)))
            labels[piece.rows] = part.labels
        return found

    def _grow(self, batch: Batch, *, anew: bool) -> None:
        """Let the pieces cover the batch: what an earlier batch of the same order had stays."""
        if anew or batch.seed != self._seed or batch.size < self._size:
            self._seed, self._size, self._pieces, self._held_bytes = batch.seed, 0, [], 0
        # a batch that is full from the start lists its rows in another order than one that has grown; both are all
        new = batch if self._size == 0 else batch.after(min(self._size, batch.size))
        rows = new.rows(self._shard.n_rows) if batch.size > self._size else np.empty(0, dtype=np.int64)
        self._size = batch.size
        for a, b in even_ranges(len(rows), self._shard.rows_per_part):
            self._pieces.append(Piece(rows[a:b], PointState(b - a)))

    def _load(self, piece: Piece) -> Matrix:
        if piece.held is not None:
            return piece.held
        rows = self._shard.source.take(piece.rows)
        values = rows if isinstance(rows, np.ndarray) else rows.data
        if not piece.checked:
            check_rows(rows, self._shard.source, piece.rows)
            piece.checked = True
        if self._held_bytes + values.nbytes <= HELD_BYTES:
            piece.held = rows
            self._held_bytes += values.nbytes
        return rows


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
        return {**first.lacks, Need.STAY: READ_ANEW, Need.SPARSE: READ_ANEW}

    @cached_property
    def batch(self) -> StreamedBatch:
        """The rows that nested batches have reached."""
        return StreamedBatch(self)

    def take_rows(self, indices: Index) -> F64:
        return self.subset(indices).take(np.arange(len(indices)))

    def subset(self, indices: Index) -> CpuShard:
        return self.part_of(self.source.take(indices), indices, PointState(len(indices)))


@StreamShard.implements(AssignBatch)
def assign_batch(shard: StreamShard, work: AssignBatch) -> NestedStatistics:
    """The rows of the batch alone are read."""
    return shard.batch.run(work)
