"""The hard pass: every row to its exactly closest centre, sums per cluster.

One compiled call per thread (`kernels.assign`): threads take spans of rows, score them in blocks that suit the cache,
and check exactly what scores leave in doubt. A shard keeps what a pass has found out (`Settled`), so that the next
pass, with the same number of centres, reads only rows whose label may change, and adds only what moved to the sums. The
same bits for any number of threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.kernels.assign import RowState, Tally, Task, assign_spans
from globular.kernels.label import Given
from globular.kernels.nearest import own_distances
from globular.kernels.settled import add_up
from globular.model.statistics import F64, FarRows, HardStatistics
from globular.passes.cpu.settled import FADED, Settled
from globular.passes.cpu.shard import CpuShard
from globular.passes.cpu.sums import add_moved, former_labels, sums_about_offset, wanted_sums
from globular.passes.host import CACHED_NUMBERS
from globular.seam.among import All
from globular.seam.passes import Assign, Farthest
from globular.threads import even_ranges, map_all, run_all, worth_waking

ROWS_PER_SPAN = 1024
"""Least rows of a span, and eight times as many as clusters where it has sums of them."""
SPANS = 256
"""Most spans, half as many where they have many sums: enough that 16 threads end at about the same time."""
MANY_SUMS = 1 << 14
SECONDS_PER_PRODUCT = 6e-11
"""Of a number of a row and one of a centre, about; what else a row takes is worth 16 centres."""
CANCELLED = 1e-3
"""Share of Σ w ‖x − offset‖² below which an objective is not taken from sums: too many digits would cancel."""


@CpuShard.implements(Assign, All)
def assign_all(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against all centres that may be closer than its own."""
    former, want_sums = former_labels(shard, work), work.want == "sums"
    settled = shard.recall(Settled) or Settled(shard)
    shard.forget(Settled)  # until the pass is complete
    settled.aim_at(work.centers)
    few = work.centers.size <= CACHED_NUMBERS
    afresh = settled.n_moved < 0 or settled.n_moved > shard.n_rows
    held = settled.held.copy() if want_sums and not few and not afresh else settled.held
    want_distances = settled.cancels or not want_sums
    tally = _sweep(shard, settled, want_sums and few, want_sums and few and afresh, want_distances)
    n_changed, n_moved, n_scored = tally.numbers.sum(axis=0).tolist()
    n_distances = n_scored * len(work.centers)
    if not settled.is_known:
        settled.total, settled.is_known = float(tally.totals[:, 0].sum()), True
    if not want_sums:
        settled.objective, settled.n_moved = float(tally.totals[:, 1].sum()), -1
        shard.keep(settled)
        return HardStatistics(*wanted_sums(shard, work, former), settled.objective, n_changed, n_distances)

    if not few and not afresh:
        moved = np.flatnonzero(held != settled.held)
        add_moved(shard, np.stack([moved, held[moved]]), settled.sums, settled.counts, shard.offset)
    settled.n_moved = 0 if afresh else settled.n_moved + n_moved
    objective = _add_up(shard, settled, tally, afresh)
    settled.cancels = not objective >= CANCELLED * settled.total
    if settled.cancels and not want_distances:
        settled.stay()
        tally = _sweep(shard, settled, False, False, True)
    if settled.cancels or want_distances:
        objective = float(tally.totals[:, 1].sum())
    settled.objective = objective
    shard.keep(settled)
    sums = settled.sums.copy() if shard.offset is None else settled.sums + settled.counts[:, None] * shard.offset
    return HardStatistics(sums, settled.counts.copy(), objective, n_changed, n_distances)


def _add_up(shard: CpuShard, settled: Settled, tally: Tally, afresh: bool) -> float:
    """Bring sums up to date; the objective that goes with them. All rows are added where too little is left of some."""
    few, nominees = settled.sums.size <= CACHED_NUMBERS, settled.nominees
    if afresh and not few:
        settled.set(*sums_about_offset(shard, len(settled.sums)))
    C, n_sums = len(settled.sums), max(1, tally.sums.size)
    queue, gains, shares = new_queue(), np.empty(C), np.empty(C)
    clusters_at_once = max(1, CACHED_NUMBERS * C // n_sums)

    def add() -> None:
        add_up(
            queue, clusters_at_once, tally, afresh and few, nominees.centers, settled.given.offset,
            settled.sums, settled.counts, settled.peaks, gains, shares,
        )  # fmt: skip

    share_kernel(add, queue, min(shard.n_threads, -(-C // clusters_at_once)), calls_blas=False)
    if afresh or shares.min() >= FADED:
        return float(settled.total + gains.sum())
    settled.n_moved = 0
    if few:
        settled.stay()
        tally = _sweep(shard, settled, True, True, False)
    return _add_up(shard, settled, tally, True)


def _sweep(shard: CpuShard, settled: Settled, add_sums: bool, all_sums: bool, distances: bool) -> Tally:
    """All rows, on all threads."""
    n, (C, D) = shard.n_rows, settled.sums.shape
    most_spans = SPANS // 2 if add_sums and C * D > MANY_SUMS else SPANS
    rows_per_span = max(ROWS_PER_SPAN, 8 * C if add_sums else 1, -(-n // most_spans))
    n_spans = -(-n // rows_per_span)
    tally = Tally(
        *settled.span_sums(n_spans if add_sums else 0),
        np.zeros(n_spans, dtype=np.bool_), np.zeros((n_spans, 2)), np.zeros((n_spans, 3), dtype=np.int64),
    )  # fmt: skip
    task = Task(not settled.is_known, all_sums, distances)
    given, nominees, shifts = settled.given, settled.nominees, settled.shifts
    state = RowState(shard.labels, settled.held, settled.room, settled.squares)
    rows = settled.rows
    if rows is None:

        def convert_and_assign(span: int) -> None:
            part = slice(span * rows_per_span, min(n, (span + 1) * rows_per_span))
            some = Given(shard.weights[part], shard.scales[part], given.offset)
            with settled.block() as block:
                assign_spans(
                    new_queue(), rows_per_span, shard.rows.kernel_rows(part.start, part.stop), some, nominees, shifts,
                    task, RowState(*(each[part] for each in state)), block,
                    Tally(*(each[span : span + 1] for each in tally)),
                )  # fmt: skip

        run_all(convert_and_assign, range(n_spans), shard.n_threads, calls_blas=False)
        return tally
    queue = new_queue()

    def assign() -> None:
        with settled.block() as block:
            assign_spans(queue, rows_per_span, rows, given, nominees, shifts, task, state, block, tally)

    seconds = SECONDS_PER_PRODUCT * n * (C + 16) * D
    share_kernel(assign, queue, worth_waking(min(shard.n_threads, n_spans), seconds), calls_blas=False)
    return tally


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
