"""Nested batches of rows on disk: the batch grows through a source that is larger than memory.

Rows join a batch in runs of neighbouring rows (`Batch.run`), so that a small batch reads a few places of the file
and not all of it. What has joined is kept as *pieces*, at most a part's worth of rows each: their numbers, and their
labels and bounds, for as long as the batches nest. The first pieces keep their rows in memory as well, up to
`HELD_BYTES`: while a batch is small, its iterations do not touch the disk at all. All others are read anew for every
pass, the next one while the present one is worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from globular.backends.cpu.shard import CpuShard
from globular.data.blocks import Matrix, Source
from globular.data.some_rows import check_rows
from globular.model.nested import Batch, NestedStatistics
from globular.model.statistics import I64
from globular.seam.passes import AssignBatch, Labels
from globular.seam.state import PointState
from globular.threads import even_ranges, read_ahead

PartOf = Callable[[Matrix, I64, PointState], CpuShard]
"""A shard of some rows: the rows, their numbers and their state."""

HELD_BYTES = 256 * 2**20


@dataclass(slots=True)
class Piece:
    """Some rows of a source that joined a batch together."""

    rows: I64
    state: PointState
    held: Matrix | None = None
    checked: bool = False


class StreamedBatch:
    """The rows of one source that the nested batches of one order have reached; `part_of` lays shards over them."""

    def __init__(
        self, source: Source, rows_per_piece: int, part_of: PartOf, labels: Labels, first_row: int = 0
    ) -> None:
        self._source, self._rows_per_piece, self._part_of = source, rows_per_piece, part_of
        self._labels, self._first_row = labels, first_row
        self._seed: int | None = None
        self._size = 0
        self._pieces: list[Piece] = []
        self._held_bytes = 0

    def run(self, work: AssignBatch) -> NestedStatistics:
        """The pass on all pieces of the batch."""
        if work.search.restart:
            self._labels[:] = -1
        self._grow(work.rows.seen_from(self._first_row), anew=work.search.restart)

        def of_piece(piece: Piece, rows: Matrix) -> NestedStatistics:
            part = self._part_of(rows, piece.rows, piece.state)
            part.labels[:] = self._labels[piece.rows]
            statistics = part.run(work.for_rows(len(piece.rows)))
            self._labels[piece.rows] = part.labels
            return statistics

        none = NestedStatistics.none(*work.centers.shape)
        return reduce(add, (of_piece(piece, rows) for piece, rows in self._read()), none)

    def _grow(self, batch: Batch, *, anew: bool) -> None:
        """Let the pieces cover the batch: what an earlier batch of the same order had stays."""
        if anew or batch.seed != self._seed or batch.size < self._size:
            self._seed, self._size, self._pieces, self._held_bytes = batch.seed, 0, [], 0
        # a batch that is full from the start lists its rows in another order than one that has grown; both are all
        new = batch if self._size == 0 else batch.after(min(self._size, batch.size))
        rows = new.rows(self._source.n_rows) if batch.size > self._size else np.empty(0, dtype=np.int64)
        self._size = batch.size
        for a, b in even_ranges(len(rows), self._rows_per_piece):
            self._pieces.append(Piece(rows[a:b], PointState(b - a)))

    def _read(self) -> Iterator[tuple[Piece, Matrix]]:
        """Every piece with its rows; the next one is read ahead."""
        return zip(self._pieces, read_ahead(map(self._load, self._pieces)), strict=True)

    def _load(self, piece: Piece) -> Matrix:
        if piece.held is not None:
            return piece.held
        rows = self._source.take(piece.rows)
        values = rows if isinstance(rows, np.ndarray) else rows.data
        if not piece.checked:
            check_rows(rows, self._source, piece.rows)
            piece.checked = True
        if self._held_bytes + values.nbytes <= HELD_BYTES:
            piece.held = rows
            self._held_bytes += values.nbytes
        return rows
