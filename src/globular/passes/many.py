"""Rows that are not all before a pass at once: any list of shards as one, and sources that are read part by part.

A pass over shards is run on each, and the results are merged along a tree. Labels equal those of one shard over all
rows bit for bit, because a label depends on its own row and the centres only. Sums are added in another order than on
one shard, so they agree to rounding (about 1e-15 of their size).

A pass over data larger than memory loads one part after the other, lays a `CpuShard` with a view of the state over it,
and merges the results. While a part is worked on, the next is read by a thread of its own. Memory: two parts, the
per-row state (4 bytes a row for labels, more for seeding and bounds) and what C×D needs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import Matrix, Source, working_dtype
from globular.data.sources import check_rows
from globular.lazy import cached_property
from globular.model.nested import Batch, NestedStatistics
from globular.model.statistics import F64, I64, Floats
from globular.passes.cpu.shard import BlockShard, CpuShard, local_shard
from globular.passes.host import PART_BYTES
from globular.seam.among import Need
from globular.seam.passes import AssignBatch, Index, Locate, Pass, Result, RowValue, Take, Total
from globular.seam.shard import PointState, Shard
from globular.threads import even_ranges, read_ahead

IN_PARTS = "the rows lie in several parts, each of which would have to keep a second copy"
Value = TypeVar("Value")
Node = tuple[int, int]
"""(level, number): the parts number · 2^level up to, and not including, (number + 1) · 2^level."""


class TreeSum(Generic[Value]):
    """Values at nodes of the tree over `n_parts` parts; two children become their parent as soon as both are there.

    Parts 0 and 1 are added, parts 2 and 3, then those two, and so on. The order in which numbers are added decides
    their last digits. A tree over the part numbers is an order that does not depend on who holds which part: a worker
    adds up what it can of its own parts, others go on from there, and the total has the same bits for any number of
    workers, and in one process.
    """

    def __init__(self, n_parts: int, merge: Callable[[Value, Value], Value]) -> None:
        self.n_parts = n_parts
        self.merge = merge
        self.nodes: dict[Node, Value] = {}

    def insert(self, level: int, number: int, value: Value) -> None:
        """Put in the sum of a node, and climb as far as siblings are there."""
        while 1 << level < self.n_parts:
            sibling = (level, number ^ 1)
            if number % 2 and sibling in self.nodes:
                value = self.merge(self.nodes.pop(sibling), value)
            elif sibling in self.nodes:
                value = self.merge(value, self.nodes.pop(sibling))
            elif number % 2 or (number + 1) << level < self.n_parts:
                break  # the sibling will come; without one (past the last part) the value climbs alone
            level, number = level + 1, number // 2
        self.nodes[level, number] = value


class SideBySide(Shard):
    """Parts that keep their own rows and state; row i of the whole is a row of the part it falls into."""

    _ends: Index
    """One past the last row of every part."""
    _parts: Sequence[Any]
    """Something that has `total_weight` and `lacks`, for every part."""

    @abstractmethod
    def _merged(self, work: Pass[Result]) -> Result:
        """The results of a pass on all parts, merged along the tree over their numbers."""

    @abstractmethod
    def _some(self, work: Mapping[int, Pass[Result]]) -> dict[int, Result]:
        """A pass of its own for each of some parts."""

    @property
    def weights_of_parts(self) -> F64:
        """Σ w of every part."""
        return np.array([part.total_weight for part in self._parts])

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        return int(self._ends[-1])

    @property
    def total_weight(self) -> float:
        return float(sum(self.weights_of_parts.tolist()))

    @property
    def lacks(self) -> Mapping[Need, str]:
        found = {need: reason for part in self._parts for need, reason in part.lacks.items()}
        return {**found, Need.ONE_PLACE: IN_PARTS, Need.SPARSE: IN_PARTS}

    def run(self, work: Pass[Result]) -> Result:
        self._check(work)
        asked: Pass[Any] = work
        if isinstance(asked, Take):  # by the number in the whole
            return cast(Result, self.take(asked.indices, asked.what))
        if isinstance(asked, Locate):
            return cast(Result, self.locate(asked.masses, asked.by))
        return self._merged(work)

    def take(self, indices: Index, what: RowValue = "rows") -> NDArray[Any]:
        owners = np.searchsorted(self._ends, indices, side="right")
        shape = (len(indices), self.n_columns) if what == "rows" else (len(indices),)
        out: NDArray[Any] = np.empty(shape, dtype=np.int32 if what == "labels" else np.float64)
        return self._gather(owners, lambda part, own: Take(indices[own] - self._first(part), what), out)

    def locate(self, masses: F64, by: Any = "weights") -> Index:
        """Find the part of each mass from the totals, then the row inside it."""
        totals = self.weights_of_parts
        if by != "weights":
            errors = self._some(dict.fromkeys(range(len(totals)), Total(by)))
            totals = np.concatenate([errors[part] for part in range(len(totals))])
        ends = np.cumsum(totals)
        last = np.flatnonzero(totals > 0)[-1] if (totals > 0).any() else 0
        owners = np.minimum(np.searchsorted(ends, masses, side="right"), last)
        firsts, before, out = np.append(0, self._ends), ends - totals, np.empty(len(masses), dtype=np.intp)
        return firsts[owners] + self._gather(owners, lambda part, own: Locate(masses[own] - before[part], by), out)

    def _gather(
        self, owners: Index, work: Callable[[int, NDArray[np.bool_]], Pass[Any]], out: NDArray[Any]
    ) -> NDArray[Any]:
        """What the owner of each value says: `work` is what to ask of a part for those that it owns."""
        found = self._some({int(part): work(int(part), owners == part) for part in np.unique(owners)})
        for part, values in found.items():
            out[owners == part] = values
        return out

    def _first(self, part: int) -> int:
        return int(self._ends[part - 1]) if part else 0

    def subset(self, indices: Index) -> CpuShard:
        return self.local(self.take(indices), self.take(indices, "weights"))

    def local(self, rows: Floats, weights: F64 | None = None) -> CpuShard:
        # those of workers in this process may lie on a card
        return local_shard(np.asarray(rows), None if weights is None else np.asarray(weights), self.n_threads)


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
            if not self._checked:
                check_rows(block.rows, self.source, np.arange(block.start, block.stop))
            part = self.part_of(block.rows, slice(block.start, block.stop), self.state.view(block.start, block.stop))
            part.first_row = self.first_row + block.start
            yield part
        self._checked = True

    def row_blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        for part in self.parts():
            yield part.first_row - self.first_row, next(part.row_blocks())[1]

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
