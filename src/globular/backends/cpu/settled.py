"""What an exact pass leaves to the next one: facts about rows and centres, whoever changes labels in between.

Memory beyond the rows: 12 bytes a row (16 of float64 rows), centres and sums three times, and a block of scores for
each thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.rows import CSRRows, KernelRows, read_only
from globular.backends.cpu.shard import CpuShard
from globular.backends.host import NONE
from globular.kernels import nominate, settled
from globular.kernels.assign import STRETCH
from globular.kernels.label import Block, Given
from globular.kernels.nominate import CENTER_CHUNK, TILE, Nominees
from globular.model.statistics import F64

FADED = 2.0**-10
"""Share of its largest count below which too little is left of a cluster: what remains in its sums may be rounding."""


class Settled:
    """Labels, bounds and sums of a pass, and its scratch memory."""

    def __init__(self, shard: CpuShard) -> None:
        n, dtype, offset = shard.n_rows, shard.dtype, shard.offset
        self.is_known = False
        """Whether anything is known of the rows."""
        self.held = np.zeros(n, dtype=np.int32)
        """The closest centre of every row."""
        self.room = np.zeros(n, dtype=np.float32)
        """How much farther all other centres are at least; 0 where that is not known."""
        self.squares = np.empty(n, dtype=dtype)
        """‖x − offset‖²."""
        self.total = 0.0
        """Σ w ‖x − offset‖²."""
        self.objective = 0.0
        """Σ w d² of the last pass."""
        self.n_moved = -1
        """Rows that have moved since all were added up, each move a rounding; −1 where sums are not known."""
        self.cancels = False
        """Whether the last objective was too small to be taken from sums."""
        self.dtype, self.across = dtype, isinstance(shard.rows, CSRRows)
        zeros = np.zeros(shard.n_columns)
        self.given = Given(
            shard.weights, shard.scales, NONE if offset is None else offset, zeros if offset is None else offset
        )
        self.rows = _rows_as_they_lie(shard)
        n_terms = shard.n_columns
        if isinstance(shard.rows, CSRRows):
            n_terms = int(np.diff(shard.rows.indptr).max(initial=0))
        self._n_terms = n_terms
        self.sums: F64 = np.empty((0, shard.n_columns))
        """Σ w s (x − offset) per label held, (C, D)."""

    def _set_number(self, C: int) -> None:
        """Make room for another number of centres; what was known about the last ones is not any more."""
        D, K, dtype = len(self.given.origin), -(-C // TILE) * TILE, self.dtype
        chunk, key = min(K, CENTER_CHUNK), np.dtype(np.int32 if dtype == np.float32 else np.int64)
        bits, info = max(0, chunk - 1).bit_length(), np.finfo(dtype)
        self._tiny = float(info.tiny)
        bounds = np.zeros(nominate.N_BOUNDS, dtype=dtype)
        bounds[nominate.TRUNCATED] = 1.001 * 2.0 ** (bits - info.nmant)
        bounds[nominate.PER_PRODUCT] = (self._n_terms + 8) * float(info.eps) * 1.001
        bounds[nominate.PER_SQUARE] = 8 * float(info.eps)
        bounds[nominate.TINY] = (self._n_terms + 8) * 8 * self._tiny
        bounds[nominate.NOBODY] = 0.0625 / self._tiny
        self.nominees = Nominees(
            np.zeros((C, D)), np.zeros(C), np.zeros((D, K) if self.across else (K, D), dtype=dtype),
            np.empty(K, dtype=dtype), np.arange(chunk, dtype=key), np.array([-1 << bits], dtype=key), bounds,
        )  # fmt: skip
        self.sums, self.counts, self.peaks = np.zeros((C, D)), np.zeros(C), np.zeros(C)
        self.shifts = np.empty(C, dtype=np.float32)
        self.rows_per_block = 256 if D <= 16 and C <= 256 else 64
        self._blocks: list[Block] = []
        self.n_moved, self.cancels = -1, False
        self.held[:], self.room[:] = 0, 0.0

    def aim_at(self, centers: F64) -> None:
        """Take the centres of the next pass."""
        if len(centers) != len(self.sums):
            self._set_number(len(centers))
        centers = np.ascontiguousarray(centers, dtype=np.float64)
        if self.across:  # exact distances of CSR rows start from these: every pass must have the same bits
            np.einsum("ij,ij->i", centers, centers, out=self.nominees.norms)
        gain = settled.aim_at(
            centers, self.given.offset, self.across, self._tiny, self.counts, self.nominees, self.shifts
        )
        if not gain <= self.objective:  # no update of means moves so far: another run begins, and owes nothing to this
            self.room[:], self.n_moved, self.cancels = 0.0, -1, False

    def stay(self) -> None:
        """Look at the rows again, with the same centres."""
        self.shifts[:] = 0.0

    def set(self, sums: F64, counts: F64) -> None:
        """Sums of all rows, about the offset."""
        self.sums, self.counts, self.peaks = sums, counts, counts.copy()

    @contextmanager
    def block(self) -> Iterator[Block]:
        """Scratch memory for one thread; the size of a block changes no result."""
        try:
            block = self._blocks.pop()
        except IndexError:
            block = self._new_block()
        yield block
        self._blocks.append(block)

    def _new_block(self) -> Block:
        n, D, dtype = self.rows_per_block + TILE, len(self.given.origin), self.dtype
        numbers = self.nominees.numbers
        chunk, key = len(numbers), numbers.dtype
        copies = np.empty((0 if self.across else n, D), dtype=dtype)
        return Block(
            np.empty(n + STRETCH, dtype=np.int64), copies, read_only(copies), np.empty((chunk, n), dtype=dtype),
            np.empty(n, dtype=dtype), np.empty((2, n), dtype=key), np.empty((2, n), dtype=dtype),
            np.empty(n, dtype=np.float32), np.empty(n, dtype=np.int32), np.empty(self.rows_per_block),
            np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(chunk, dtype=dtype),
        )  # fmt: skip


def _rows_as_they_lie(shard: CpuShard) -> KernelRows | None:
    """All rows for a kernel; None if they have to be converted or gathered."""
    rows = shard.rows
    if isinstance(rows, CSRRows):
        return rows.data, rows.indices, rows.indptr
    return (read_only(cast(NDArray[Any], rows.array)),) if rows.is_direct() else None
