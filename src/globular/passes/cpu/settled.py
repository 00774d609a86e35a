"""What an exact pass leaves to the next one: facts about rows and centres, whoever changes labels in between.

Memory beyond the rows: 12 bytes a row (16 of float64 rows), centres and sums three times, the sums of spans (a quarter
of float32 rows at most) and a block of rows for each thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from globular.jit import Queue, kernel, take_number
from globular.jit.tiles import line_tile, tile_for
from globular.model.statistics import F64
from globular.passes.cpu.engine.score import Block, Bound, Nominees, bounds_for, chunk_of, new_block, set_largest
from globular.passes.cpu.rows import CSRRows, aligned_zeros
from globular.passes.cpu.shard import CpuShard


@kernel
def _transpose(
    centers: Any,  # IN  (C, D)
    offset: Any,  # IN  (D,) or empty
    factors: Any,  # OUT (D, ≥ C) −2 (m − offset)
) -> None:
    """Centres across, in tiles of 16 × 16, so that what is read and what is written stays in the cache. O(C·D)."""
    C, D = centers.shape
    side = 16
    for first in range(0, D, side):
        for begin in range(0, C, side):
            for j in range(first, min(first + side, D)):
                origin = offset[j] if offset.shape[0] else 0.0
                for c in range(begin, min(begin + side, C)):
                    factors[j, c] = -2.0 * (centers[c, j] - origin)


@kernel
def aim_at(
    centers: Any,  # IN  (C, D) the new centres, float64
    offset: Any,  # IN  (D,) or empty
    counts: Any,  # IN  (C,) Σ w of the last pass
    nominees: Any,  # IN/OUT those of the last pass; its centres are float64 too
    shifts: Any,  # OUT (C,) float32: how much room the rows of a label lose
) -> tuple[float, float]:
    """Take new centres: how far each has moved, together with the farthest of the others, and their scores. O(C·D).

    Returns Σ_c n_c ‖shift‖², what the centres' moves would take off the objective if they were those of means, and the
    largest ‖m − offset‖².
    """
    C, D = centers.shape
    round_up = 1.0 + 2.0**-20  # makes up for the rounding of shifts and their sums
    factors, width = nominees.factors, nominees.factors.shape[2]
    across = factors.shape[0] == 1  # all centres in one tile
    farthest, first, second, longest, gain = -1, 0.0, 0.0, 0.0, 0.0
    for c in range(C):
        shift, square = 0.0, 0.0
        for j in range(D):
            value = centers[c, j]
            difference = value - nominees.centers[c, j]
            shift += difference * difference
            nominees.centers[c, j] = value
            about = value - offset[j] if offset.shape[0] else value
            square += about * about
            if not across:
                factors[c // width, j, c % width] = -2.0 * about
        nominees.score_norms[c] = square
        longest = max(longest, square)
        gain += counts[c] * shift
        shift = np.sqrt(shift)
        shifts[c] = shift * round_up
        if not shift <= first:
            farthest, first, second = c, shift, first
        elif shift > second:
            second = shift
    if across:
        _transpose(centers, offset, factors[0])
    for c in range(C):
        shifts[c] = (np.float64(shifts[c]) + (second if c == farthest else first)) * round_up
    return gain, longest


@kernel
def add_up(
    queue: Queue,  # IN/OUT stretches of clusters not taken yet
    clusters_at_once: int,  # IN
    tally: Any,  # IN
    afresh: bool,  # IN  whether the spans have added all rows, not the moved ones
    centers: Any,  # IN  (C, D)
    offset: Any,  # IN  (D,) or empty
    sums: Any,  # IN/OUT (C, D) Σ w s (x − offset)
    counts: Any,  # IN/OUT (C,) Σ w
    peaks: Any,  # IN/OUT (C,) the largest count since all rows were added up
    gains: Any,  # OUT (C,) n ‖m‖² − 2 s·m about the offset: what a cluster adds to Σ w ‖x‖² to make Σ w ‖x − m‖² of it
    shares: Any,  # OUT (C,) the share of its peak that it has left
) -> None:
    """Add what the spans have added up, in their order, until no cluster is left. O(spans · C · D)."""
    C, D = sums.shape
    begin = take_number(queue) * clusters_at_once
    while begin < C:
        end = min(begin + clusters_at_once, C)
        if afresh:
            sums[begin:end] = 0.0
            counts[begin:end] = 0.0
        for span in range(tally.touched.shape[0]):
            if tally.touched[span]:
                for c in range(begin, end):
                    counts[c] += tally.counts[span, c]
                    for j in range(D):
                        sums[c, j] += tally.sums[span, c, j]
        for c in range(begin, end):
            peaks[c] = counts[c] if afresh else max(peaks[c], counts[c])
            shares[c] = 1.0
            if counts[c] == 0.0:
                for j in range(D):
                    sums[c, j] = 0.0
            else:
                shares[c] = counts[c] / peaks[c]
            gain = 0.0
            for j in range(D):
                about = centers[c, j] - offset[j] if offset.shape[0] else centers[c, j]
                gain += (counts[c] * about - 2.0 * sums[c, j]) * about
            gains[c] = gain
        begin = take_number(queue) * clusters_at_once


FADED = 2.0**-10
"""Share of its largest count below which too little is left of a cluster: what remains in its sums may be rounding."""


class Settled:
    """Labels, bounds and sums of a pass, and its scratch memory."""

    def __init__(self, shard: CpuShard) -> None:
        n, dtype = shard.n_rows, shard.dtype
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
        self.given, self._n_terms = shard.given, shard.rows.most_terms()
        self.sums: F64 = np.empty((0, shard.n_columns))
        """Σ w s (x − offset) per label held, (C, D)."""

    def _set_number(self, C: int) -> None:
        """Make room for another number of centres; what was known about the last ones is not any more."""
        D, dtype = self.sums.shape[1], self.dtype
        tile = line_tile(dtype.itemsize) if self.across else tile_for(C, D, dtype.itemsize)
        K = -(-C // tile.step) * tile.step
        self._chunk = chunk_of(K, D, dtype.itemsize, tile.step, across=self.across)
        bounds, mask = bounds_for(dtype, D, self._n_terms, self._chunk)
        self.nominees = Nominees(
            np.zeros((C, D)), np.zeros(C),
            aligned_zeros((1, D, K) if self.across else (K // tile.width, D, tile.width), dtype),
            np.full(K, bounds[Bound.NOBODY]), mask, bounds, np.arange(K), np.array([0, K]), np.array([C]),
        )  # fmt: skip
        self.sums, self.counts, self.peaks = np.zeros((C, D)), np.zeros(C), np.zeros(C)
        self.shifts = np.empty(C, dtype=np.float32)
        self._blocks: list[Block] = []
        self._span_sums = np.empty((0, C, D)), np.empty((0, C))
        self.n_moved, self.cancels = -1, False
        if self.is_known:  # else they are zero, and each thread is the first to touch its part of them
            self.held[:], self.room[:] = 0, 0.0

    def aim_at(self, centers: F64) -> None:
        """Take the centres of the next pass."""
        if len(centers) != len(self.sums):
            self._set_number(len(centers))
        centers = np.ascontiguousarray(centers, dtype=np.float64)
        if self.across:  # exact distances of CSR rows start from these: every pass must have the same bits
            np.einsum("ij,ij->i", centers, centers, out=self.nominees.norms)
        gain, longest = aim_at(centers, self.given.offset, self.counts, self.nominees, self.shifts)
        set_largest(self.nominees.bounds, longest)
        if not gain <= self.objective:  # no update of means moves so far: another run begins, and owes nothing to this
            self.room[:], self.n_moved, self.cancels = 0.0, -1, False

    def span_sums(self, n_spans: int) -> tuple[F64, F64]:
        """Memory for the sums and counts of spans, the same in every pass."""
        if n_spans > len(self._span_sums[0]):
            self._span_sums = np.empty((n_spans, *self.sums.shape)), np.empty((n_spans, len(self.sums)))
        sums, counts = self._span_sums
        return sums[:n_spans], counts[:n_spans]

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
            block = new_block(self.given, self.dtype, self._chunk, across=self.across)
        yield block
        self._blocks.append(block)
