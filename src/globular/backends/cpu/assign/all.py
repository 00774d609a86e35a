"""The hard pass: every row to its exactly closest centre, sums per cluster.

One compiled call per thread (`kernels.assign`): threads take spans of rows, score them in blocks that suit the cache,
and check exactly what scores leave in doubt. A shard keeps what a pass has found out (`Settled`), so that the next pass,
with the same number of centres, reads only rows whose label may change, and adds only what moved to the sums. The same
bits for any number of threads. Memory beyond the rows: 16 bytes a row (20 of float64), the centres once more in the
rows' dtype, the sums of at most 128 spans, and one block of scores per thread; never N×C.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.rows import CSRRows, DenseRows, Floats, KernelRows, read_only
from globular.backends.cpu.shard import CpuShard
from globular.backends.cpu.sums import FEW_SUMS, former_labels, moved_sums, sums_about_offset, wanted_sums
from globular.backends.host import NONE
from globular.kernels import assign as kernels
from globular.kernels import nominate
from globular.kernels.assign import Block, Given, RowState, Tally, Task
from globular.kernels.nearest import own_distances
from globular.kernels.nominate import CENTER_CHUNK, TILE, Nominees
from globular.kernels.queue import new_queue
from globular.model.statistics import F64, FarRows, HardStatistics
from globular.seam.among import All
from globular.seam.passes import Assign, Farthest, Labels
from globular.threads import even_ranges, map_all, on_all_threads, run_all

ROWS_PER_SPAN = 4096
"""Least rows of a span."""
SPANS = 128
"""Most spans; fewer where their sums would take more than SPAN_SUMS numbers, but never less than 32."""
SPAN_SUMS = 1 << 21
CANCELLED = 1e-3
"""Share of Σ w ‖x − offset‖² below which an objective is not taken from sums: too many digits would cancel."""

FADED = 2.0**-10
"""Share of a cluster's largest count below which its sums are taken afresh."""


@dataclass(slots=True)
class Settled:
    """What a pass leaves to the next one: facts about the rows and its centres, whoever changes labels in between."""

    held: Labels
    """The closest centre of every row."""
    room: NDArray[np.float32]
    """How much farther all other centres are; 0 where that is not known."""
    squares: Floats
    """‖x − offset‖²."""
    total: float = 0.0
    """Σ w ‖x − offset‖²."""
    centers: F64 | None = None
    sums: F64 | None = None
    """Σ w s (x − offset) per label held, or None."""
    counts: F64 = field(default_factory=lambda: NONE)
    peaks: F64 = field(default_factory=lambda: NONE)
    """The largest count of each label since all rows were added up."""
    n_moved: int = 0
    """Rows that have moved since then: every move adds a rounding."""
    cancels: bool = False
    """Whether the last objective was too small to be taken from sums."""

    @classmethod
    def of(cls, shard: CpuShard) -> Settled:
        """Nothing known yet."""
        n = shard.n_rows
        return cls(np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.float32), np.empty(n, dtype=shard.dtype))

    def set_sums(self, sums: F64, counts: F64) -> None:
        """Sums of all rows."""
        self.sums, self.counts, self.peaks, self.n_moved = sums, counts, counts.copy(), 0

    def add_sums(self, sums: F64, counts: F64, n_moved: int) -> None:
        """What moved rows change."""
        assert self.sums is not None
        self.sums, self.counts, self.n_moved = self.sums + sums, self.counts + counts, self.n_moved + n_moved
        self.sums[self.counts == 0] = 0.0
        self.peaks = np.maximum(self.peaks, self.counts)

    def has_faded(self, weighted: bool) -> bool:
        """Whether a cluster has lost so much that what is left may be rounding; counts without weights are exact."""
        return bool(((self.counts < FADED * self.peaks) & (weighted | (self.counts > 0))).any())

    def shifts_to(self, centers: F64) -> NDArray[np.float32]:
        """Room that the rows of each label lose: the shift of their own centre and the largest of the others."""
        if self.centers is None or len(self.centers) != len(centers):
            self.room[:], self.sums = 0.0, None
            return np.zeros(len(centers) if self.centers is None else len(self.centers), dtype=np.float32)
        difference = centers - self.centers
        with np.errstate(over="ignore"):
            shifts = np.sqrt(np.einsum("ij,ij->i", difference, difference))
            farthest = int(shifts.argmax())
            others = np.full(len(shifts), shifts[farthest])
            others[farthest] = np.partition(shifts, -2)[-2] if len(shifts) > 1 else 0.0
            return ((shifts + others) * (1 + 1e-6)).astype(np.float32)


@CpuShard.implements(Assign, All)
def assign_all(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against all centres that may be closer than its own."""
    centers, former = np.ascontiguousarray(work.centers, dtype=np.float64), former_labels(shard, work)
    settled = shard.recall(Settled)
    shard.forget(Settled)  # until the pass is complete
    is_first = settled is None
    settled = Settled.of(shard) if settled is None else settled
    shifts = settled.shifts_to(centers)
    few = centers.size <= FEW_SUMS
    afresh = settled.sums is None or settled.n_moved > shard.n_rows
    held = settled.held.copy() if work.want == "sums" and not few and not afresh else settled.held
    task = Task(is_first, work.want == "sums" and few and afresh, work.want != "sums" or settled.cancels)

    tally = _sweep(shard, centers, settled, shifts, task, few and work.want == "sums")
    n_changed, n_moved, n_scored = tally.numbers.sum(axis=0).tolist()
    if is_first:
        settled.total = float(tally.totals[:, 0].sum())
    settled.centers = centers
    if work.want != "sums":
        settled.sums = None
        shard.keep(settled)
        sums, counts = wanted_sums(shard, work, former)
        return HardStatistics(sums, counts, float(tally.totals[:, 1].sum()), n_changed, n_scored * len(centers))

    if few:
        _add_spans(settled, tally, afresh, n_moved)
    elif afresh:
        settled.set_sums(*sums_about_offset(shard, len(centers)))
    else:
        moved = np.flatnonzero(held != settled.held)
        settled.add_sums(*moved_sums(shard, len(centers), np.stack([moved, held[moved]]), shard.offset), n_moved)
    if settled.has_faded(len(shard.weights) > 0):
        if few:
            again = _sweep(shard, centers, settled, np.zeros_like(shifts), Task(False, True, False), True)
            _add_spans(settled, again, True, 0)
        else:
            settled.set_sums(*sums_about_offset(shard, len(centers)))
    assert settled.sums is not None
    objective = _objective(shard, settled)
    settled.cancels = not objective >= CANCELLED * settled.total
    if settled.cancels and not task.distances:
        tally = _sweep(shard, centers, settled, np.zeros_like(shifts), Task(False, False, True), False)
    if settled.cancels or task.distances:
        objective = float(tally.totals[:, 1].sum())
    shard.keep(settled)
    sums = settled.sums.copy() if shard.offset is None else settled.sums + settled.counts[:, None] * shard.offset
    return HardStatistics(sums, settled.counts.copy(), objective, n_changed, n_scored * len(centers))


def _add_spans(settled: Settled, tally: Tally, afresh: bool, n_moved: int) -> None:
    sums, counts = np.zeros(tally.sums.shape[1:]), np.zeros(tally.sums.shape[1])
    kernels.add_spans(tally, sums, counts)
    if afresh:
        settled.set_sums(sums, counts)
    else:
        settled.add_sums(sums, counts, n_moved)


def _objective(shard: CpuShard, settled: Settled) -> float:
    """Σ w ‖x − m‖² = Σ w ‖x‖² − 2 Σ_c s_c·m_c + Σ_c n_c ‖m_c‖², everything about the offset."""
    assert settled.centers is not None and settled.sums is not None
    centers = settled.centers if shard.offset is None else settled.centers - shard.offset
    with np.errstate(over="ignore", invalid="ignore"):
        within = settled.counts[:, None] * centers - 2.0 * settled.sums
        return settled.total + float(np.einsum("ij,ij->", within, centers))


def _sweep(
    shard: CpuShard, centers: F64, settled: Settled, shifts: NDArray[np.float32], task: Task, add_up: bool
) -> Tally:
    """The pass itself, on all threads."""
    n, (C, D) = shard.n_rows, centers.shape
    n_spans = min(SPANS, max(32, SPAN_SUMS // max(1, centers.size)))
    rows_per_span = max(ROWS_PER_SPAN, 8 * C, -(-n // n_spans))
    n_spans = -(-n // rows_per_span)
    tally = Tally(
        np.empty((n_spans if add_up else 0, C, D)), np.empty((n_spans if add_up else 0, C)),
        np.zeros(n_spans, dtype=np.bool_), np.zeros((n_spans, 2)), np.zeros((n_spans, 3), dtype=np.int64),
    )  # fmt: skip
    nominees = nominees_of(shard, centers)
    offset = NONE if shard.offset is None else shard.offset
    given = Given(shard.weights, shard.scales, offset, np.zeros(D) if shard.offset is None else shard.offset)
    state = RowState(shard.labels, settled.held, settled.room, settled.squares)
    rows = _rows_as_they_lie(shard)
    if rows is not None:
        queue = new_queue()

        def work() -> None:
            kernels.assign_spans(
                queue, rows_per_span, rows, given, nominees, shifts, task, state, _block(shard, C, D), tally
            )

        on_all_threads(work, min(shard.n_threads, n_spans))
        return tally

    def convert_and_work(span: int) -> None:
        part = slice(span * rows_per_span, min(n, (span + 1) * rows_per_span))
        sums, counts, *others = (each[span : span + 1] for each in tally)
        kernels.assign_spans(
            new_queue(), rows_per_span, shard.rows.kernel_rows(part.start, part.stop),
            Given(shard.weights[part], shard.scales[part], given.offset, given.origin), nominees, shifts, task,
            RowState(*(each[part] for each in state)), _block(shard, C, D), Tally(sums, counts, *others),
        )  # fmt: skip

    run_all(convert_and_work, range(n_spans), shard.n_threads)
    return tally


def _rows_as_they_lie(shard: CpuShard) -> KernelRows | None:
    rows = shard.rows
    if isinstance(rows, CSRRows):
        return rows.data, rows.indices, rows.indptr
    return (read_only(cast(NDArray[Any], rows.array)),) if rows.is_direct() else None


def _block(shard: CpuShard, n_centers: int, n_columns: int) -> Block:
    """Scratch for one thread; the size of a block changes no result."""
    rows, dtype = 256 if n_columns <= 16 and n_centers <= 256 else 64, shard.dtype
    n, K = rows + TILE, -(-n_centers // TILE) * TILE
    key = np.int32 if dtype == np.float32 else np.int64
    copies = np.empty((0 if isinstance(shard.rows, CSRRows) else n, n_columns), dtype=dtype)
    return Block(
        np.empty(n + kernels.STRETCH, dtype=np.int64), copies, read_only(copies), np.empty((min(K, CENTER_CHUNK), n), dtype=dtype), np.empty(n, dtype=dtype), np.empty((2, n), dtype=key),
        np.empty((2, n), dtype=dtype), np.empty(n, dtype=np.float32), np.empty(n, dtype=np.int32), np.empty(rows),
        np.empty(n, dtype=np.int64), np.empty(rows, dtype=np.int64), np.empty(min(K, CENTER_CHUNK), dtype=dtype),
    )  # fmt: skip


def nominees_of(shard: CpuShard, centers: F64) -> Nominees:
    """Centres ready to be scored against the rows of a shard."""
    dtype, (C, D) = shard.dtype, centers.shape
    K = -(-C // TILE) * TILE
    shifted = centers if shard.offset is None else centers - shard.offset
    norms = np.einsum("ij,ij->i", shifted, shifted)
    is_csr = isinstance(shard.rows, CSRRows)
    n_terms = int(np.diff(shard.rows.indptr).max(initial=0)) if isinstance(shard.rows, CSRRows) else D
    chunk = min(K, CENTER_CHUNK)
    bounds = _bounds(dtype, n_terms, chunk, float(np.sqrt(norms.max())))
    score_norms = np.full(K, bounds[nominate.NOBODY], dtype=dtype)
    factors = np.zeros((D, K) if is_csr else (K, D), dtype=dtype)
    with np.errstate(over="ignore"):  # kernels see by themselves where scores overflow
        score_norms[:C] = norms
        (factors.T if is_csr else factors)[:C] = -2.0 * shifted
    key = np.int32 if dtype == np.float32 else np.int64
    mask = np.array([~((1 << (chunk - 1).bit_length()) - 1)], dtype=key)
    plain = norms if shard.offset is None else np.einsum("ij,ij->i", centers, centers)
    return Nominees(centers, plain, factors, score_norms, np.arange(chunk, dtype=key), mask, bounds)


def _bounds(dtype: np.dtype, n_terms: int, chunk: int, longest: float) -> Floats:
    """What bounds the rounding of scores; see `nominate.judge_block`."""
    info = np.finfo(dtype)
    unit, tiny = float(info.eps) / 2, float(info.tiny)
    bounds = np.empty(nominate.N_BOUNDS)
    bounds[nominate.TRUNCATED] = 1.001 * 2.0 ** ((chunk - 1).bit_length() - info.nmant)
    bounds[nominate.PER_PRODUCT] = (2 * n_terms + 16) * unit * 1.001
    bounds[nominate.PER_SQUARE] = 16 * unit
    bounds[nominate.TINY] = (2 * n_terms + 16) * 4 * tiny
    # scores of longer rows, or sums of more terms, may overflow or say nothing: such rows are compared exactly
    reach = 0.125 / np.sqrt(tiny) - longest
    bounds[nominate.LARGEST] = reach * reach if reach > 0 and bounds[nominate.PER_PRODUCT] < 0.1 else 0.0
    bounds[nominate.NOBODY] = 0.0625 / tiny
    return bounds.astype(dtype)


@CpuShard.implements(Farthest)
def farthest(shard: CpuShard, work: Farthest) -> FarRows:
    n, centers = work.n, np.ascontiguousarray(work.centers, dtype=np.float64)
    norms = np.einsum("ij,ij->i", centers, centers)

    def block(span: tuple[int, int]) -> tuple[F64, NDArray[np.intp]]:
        start, stop = span
        distances = np.empty(stop - start)
        rows = shard.rows.kernel_rows(start, stop)
        own_distances(rows, shard.scales[start:stop], centers, norms, shard.labels[start:stop], distances)
        if len(shard.weights):
            distances[shard.weights[start:stop] == 0] = -1.0
        chosen = np.argsort(-distances, kind="stable")[:n]
        return distances[chosen], chosen + start

    found = map_all(block, even_ranges(shard.n_rows, 8192), shard.n_threads)
    distances = np.concatenate([np.empty(0), *(d for d, _ in found)])
    indices = np.concatenate([np.empty(0, dtype=np.intp), *(i for _, i in found)])
    best = np.argsort(-distances, kind="stable")[:n]
    best = best[distances[best] >= 0]
    chosen = indices[best]
    weights, labels = shard.take(chosen, "weights"), shard.labels[chosen].astype(np.int64)
    return FarRows(shard.take(chosen), distances[best], weights, labels)
