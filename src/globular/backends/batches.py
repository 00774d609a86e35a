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

import numpy as np

from globular.backends.protocol import Index, Labels, Shard, add_up
from globular.backends.state import PointState
from globular.data.blocks import Matrix, Source
from globular.data.some_rows import check_rows
from globular.model.columns import ColumnMeans
from globular.model.nested import Batch, NestedSearch, NestedStatistics
from globular.model.statistics import F64, I64
from globular.threads import even_ranges, read_ahead

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
        self, source: Source, rows_per_part: int, part_of: Callable[[Matrix, Index, PointState], Shard]
    ) -> None:
        self.source = source
        self.rows_per_part = rows_per_part
        self.part_of = part_of
        self._seed: int | None = None
        self._size = 0
        self._pieces: list[Piece] = []
        self._held_bytes = 0

    def nested_pass(
        self, centers: F64 | ColumnMeans, origin: F64, batch: Batch, search: NestedSearch, labels: Labels
    ) -> NestedStatistics:
        """See `Shard.nested_pass`; `labels` are those of all rows."""
        if search.restart:
            labels[:] = -1
        self._grow(batch, anew=search.restart)
        inside = NestedSearch(search.bounds, search.candidates, search.remove_old)

        def of_piece(piece: Piece, rows: Matrix) -> NestedStatistics:
            part = self.part_of(rows, piece.rows, piece.state)
            part.labels[:] = labels[piece.rows]
            statistics = part.nested_pass(centers, origin, Batch(0, len(piece.rows), len(piece.rows)), inside)
            labels[piece.rows] = part.labels
            return statistics

        none = NestedStatistics.none(*centers.shape)
        return add_up([none, *(of_piece(piece, rows) for piece, rows in self._read())])

    def _grow(self, batch: Batch, *, anew: bool) -> None:
        """Let the pieces cover the batch: what an earlier batch of the same order had stays."""
        if anew or batch.seed != self._seed or batch.size < self._size:
            self._seed, self._size, self._pieces, self._held_bytes = batch.seed, 0, [], 0
        # a batch that is full from the start lists its rows in another order than one that has grown; both are all
        new = batch if self._size == 0 else batch.after(min(self._size, batch.size))
        rows = new.rows(self.source.n_rows) if batch.size > self._size else np.empty(0, dtype=np.int64)
        self._size = batch.size
        for a, b in even_ranges(len(rows), self.rows_per_part):
            self._pieces.append(Piece(rows[a:b], PointState(b - a)))

    def _read(self) -> Iterator[tuple[Piece, Matrix]]:
        """Every piece with its rows; the next one is read ahead."""
        return zip(self._pieces, read_ahead(map(self._load, self._pieces)), strict=True)

    def _load(self, piece: Piece) -> Matrix:
        if piece.held is not None:
            return piece.held
        rows = self.source.take(piece.rows)
        values = rows if isinstance(rows, np.ndarray) else rows.data
        if not piece.checked:
            check_rows(rows, self.source, piece.rows)
            piece.checked = True
        if self._held_bytes + values.nbytes <= HELD_BYTES:
            piece.held = rows
            self._held_bytes += values.nbytes
        return rows
