"""The hard pass: every row to its exactly closest centre, sums per cluster, one compiled call per thread.

Rows come in spans, and a thread takes the next span until none is left. What a span adds up goes to its own place, so
results do not depend on threads. Per row the pass keeps `held`, its label; `squares`, ‖x − offset‖²; and `room`, how
far centres may move before the label can change (Hamerly's two bounds in one number; see `engine.decide`). A row whose
room outlasts the shifts of the centres is not even read. The others wait in a block until it is full; the block is
scored, and rows without room after that are compared exactly with whatever may be closer.

A shard keeps what a pass has found out (`Settled`), so that the next pass, with the same number of centres, reads only
rows whose label may change, and adds only what moved to the sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, new_queue, share_kernel, take_number
from globular.jit.tiles import ROWS
from globular.model.sparse_centers import SparseCenters, are_sparse
from globular.model.statistics import HardStatistics
from globular.passes.cpu.assign.sparse import label_sparse
from globular.passes.cpu.engine.decide import ROUND_DOWN, label_block
from globular.passes.cpu.engine.rows import add_row, squared_distance
from globular.passes.cpu.rows import KernelRows, on_rows
from globular.passes.cpu.settled import FADED, Settled, add_up
from globular.passes.cpu.shard import CpuShard
from globular.passes.cpu.sums import add_moved, sums_about_offset, wanted_sums
from globular.passes.host import CACHED_NUMBERS, runs_of
from globular.seam.among import All
from globular.seam.passes import Assign
from globular.seam.sparse_passes import LabelSparse
from globular.threads import worth_waking

ROWS_PER_LABELLED_SPAN = 1024
"""Least rows of a span, and eight times as many as clusters where it has sums of them."""
SPANS = 256
"""Most spans, half as many where they have many sums: enough that 16 threads end at about the same time."""
MANY_SUMS = 1 << 14
SECONDS_PER_PRODUCT = 6e-11
"""Seconds per multiply-add, about; the fixed cost of a row equals 16 centres."""
CANCELLED_ERROR = 1e-3
"""Share of Σ w ‖x − offset‖² below which an objective is not taken from sums: too many digits would cancel."""


class RowState(NamedTuple):
    """What is kept of every row, each (n,)."""

    labels: Any  # int32, as others see them
    held: Any  # int32, as the last pass left them
    room: Any  # float32
    squares: Any  # in the rows' dtype


class LabelTally(NamedTuple):
    """What a span adds up."""

    sums: Any  # (spans or 0, C, D) Σ w s (x − offset), or what the moved rows change about it
    counts: Any  # (spans or 0, C)
    touched: Any  # (spans,) whether there is anything in its sums
    totals: Any  # (spans, 2) Σ w ‖x − offset‖² where squares are new; Σ w d² where distances are wanted
    numbers: Any  # (spans, 3) int64: labels changed, rows moved, rows scored


class Task(NamedTuple):
    """What a pass is to do."""

    is_first: bool  # whether nothing is known of the rows
    all_sums: bool  # whether all rows are added up, not the moved ones only
    distances: bool  # whether Σ w d² is wanted


@inline
def add_to_sums(rows: Any, i: int, former: Any, c: int, given: Any, span: int, tally: Any) -> None:
    """Add a row to a cluster's sums of its span, and take it from its former one's; −1: from none. O(D) or O(nnz)."""
    if not tally.touched[span]:
        tally.touched[span] = True
        tally.counts[span] = 0.0
        tally.sums[span] = 0.0
    weight = given.weights[i] if given.weights.shape[0] else 1.0
    factor = weight * (given.scales[i] if given.scales.shape[0] else 1.0)
    tally.counts[span, c] += weight
    add_row(rows, i, factor, given.offset, tally.sums[span], c)
    if former >= 0:
        tally.counts[span, former] -= weight
        add_row(rows, i, -factor, given.offset, tally.sums[span], former)


@inline
def add_distance(rows: Any, i: int, c: int, given: Any, nominees: Any, span: int, tally: Any) -> None:
    """Add a row's squared distance to its centre. O(D) or O(nnz)."""
    weight = given.weights[i] if given.weights.shape[0] else 1.0
    scale = given.scales[i] if given.scales.shape[0] else 1.0
    tally.totals[span, 1] += weight * squared_distance(rows, i, scale, nominees.centers, c, nominees.norms)


@kernel
def find_unsettled(
    rows: Any,  # IN
    given: Any,  # IN
    shifts: Any,  # IN
    task: Any,  # IN
    start: int,  # IN  the first row to look at
    stop: int,  # IN
    state: Any,  # IN/OUT
    places: Any,  # OUT rows whose label may have changed, behind those that wait already
    waiting: int,  # IN
    span: int,  # IN
    tally: Any,  # IN/OUT
) -> int:
    """How many rows wait after this stretch; the others stay where they are, and are not read for that. O(n)."""
    keep = np.float32(ROUND_DOWN)
    if task.is_first:
        for i in range(start, stop):
            scale = given.scales[i] if given.scales.shape[0] else 1.0
            square = squared_distance(rows, i, scale, given.about, 0, given.about_norm)
            state.squares[i] = square
            tally.totals[span, 0] += square * (given.weights[i] if given.weights.shape[0] else 1.0)
    room, held = state.room[start:stop], state.held[start:stop]  # counted from 0: it vectorises
    if not task.is_first:
        for i in range(stop - start):
            room[i] = (room[i] - shifts[np.uint32(held[i])]) * keep
    for i in range(stop - start):  # without a branch that nobody can foretell
        places[np.uint64(waiting)] = start + i
        waiting += not room[i] > 0
    return waiting


@kernel
def settle_block(
    rows: Any,  # IN
    places: Any,  # IN  (m,) rows of the block
    given: Any,  # IN
    task: Any,  # IN
    state: Any,  # IN/OUT
    block: Any,  # IN
    span: int,  # IN
    tally: Any,  # IN/OUT
) -> None:
    """Write down the labels of a block, and add up what they change. O(m · D)."""
    for position in range(places.shape[0]):
        i, c = places[position], block.found[position]
        former = state.held[i]
        state.held[i] = c
        state.room[i] = block.room[position]
        if former != c:
            tally.numbers[span, 1] += 1
            if tally.sums.shape[0] and not task.all_sums:
                add_to_sums(rows, i, former, c, given, span, tally)
    tally.numbers[span, 2] += places.shape[0]


@inline
def add_labelled(
    rows: Any,  # IN
    given: Any,  # IN
    nominees: Any,  # IN
    task: Any,  # IN
    start: int,  # IN  rows that have their labels, while they are in the cache
    stop: int,  # IN
    state: Any,  # IN
    span: int,  # IN
    tally: Any,  # IN/OUT
) -> None:
    """Add what is wanted of all rows, in their order: the sum does not depend on what was known. O(n · D)."""
    if task.all_sums:
        for i in range(start, stop):
            # −1 is of the type of labels: for another, `add_to_sums` would be compiled again
            add_to_sums(rows, i, np.int32(-1), state.held[i], given, span, tally)
    if task.distances:
        for i in range(start, stop):
            add_distance(rows, i, state.held[i], given, nominees, span, tally)


@inline
def copy_labels(
    held: Any,  # IN  (n,)
    labels: Any,  # OUT (n,)
) -> int:
    """Make labels known; how many of them that changes. O(n)."""
    n_changed = 0
    for i in range(held.shape[0]):
        n_changed += labels[i] != held[i]
        labels[i] = held[i]
    return n_changed


@kernel
def assign_spans(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    rows: Any,  # IN
    given: Any,  # IN
    nominees: Any,  # IN
    shifts: Any,  # IN  (C,) float32: how much room a label's rows lose since the last pass
    task: Any,  # IN
    state: Any,  # IN/OUT
    block: Scratch,  # scratch of this thread
    tally: Any,  # OUT
) -> None:
    """Spans of rows, until none is left. O(rows without room · C · D + n)."""
    n, capacity = state.labels.shape[0], block.best.shape[0]
    # rows that are read anyway are labelled while they are in the cache
    stretch = capacity if task.is_first else block.queue.shape[0] - capacity - ROWS
    span = take_number(queue)
    while span * rows_per_span < n:
        begin = span * rows_per_span
        end = min(n, begin + rows_per_span)
        head, tail, start, added = 0, 0, begin, begin
        while start < end or head < tail:
            if start < end and tail - head < capacity:
                for i in range(tail - head):  # fewer than a block are left over from the last stretch
                    block.queue[i] = block.queue[head + i]
                stop = min(start + stretch, end)
                tail = find_unsettled(
                    rows, given, shifts, task, start, stop, state, block.queue, tail - head, span, tally
                )
                head, start = 0, stop
                if start < end and tail < capacity:
                    continue
            places = block.queue[head : min(head + capacity, tail)]
            head += places.shape[0]
            if places.shape[0]:
                label_block(rows, places, given, nominees, state.squares, block)
                settle_block(rows, places, given, task, state, block, span, tally)
            labelled = block.queue[head] if head < tail else start
            add_labelled(rows, given, nominees, task, added, labelled, state, span, tally)
            added = labelled
        tally.numbers[span, 0] = copy_labels(state.held[begin:end], state.labels[begin:end])
        span = take_number(queue)


@CpuShard.implements(Assign, All)
def assign_all(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against all centres that may be closer than its own."""
    want_sums = work.want == "sums"
    if not want_sums and not shard.why_not(LabelSparse) and are_sparse(work.centers):
        return label_sparse(shard, LabelSparse(SparseCenters.of(work.centers)))
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
        return HardStatistics(*wanted_sums(shard, work), settled.objective, n_changed, n_distances)

    if not few and not afresh:
        moved = np.flatnonzero(held != settled.held)
        add_moved(shard, np.stack([moved, held[moved]]), settled.sums, settled.counts, shard.origin)
    settled.n_moved = 0 if afresh else settled.n_moved + n_moved
    objective = _add_up(shard, settled, tally, afresh)
    settled.cancels = not objective >= CANCELLED_ERROR * settled.total
    if settled.cancels and not want_distances:
        settled.stay()
        tally = _sweep(shard, settled, False, False, True)
    if settled.cancels or want_distances:
        objective = float(tally.totals[:, 1].sum())
    settled.objective = objective
    shard.keep(settled)
    sums = settled.sums.copy() if shard.offset is None else settled.sums + settled.counts[:, None] * shard.offset
    return HardStatistics(sums, settled.counts.copy(), objective, n_changed, n_distances)


def _add_up(shard: CpuShard, settled: Settled, tally: LabelTally, afresh: bool) -> float:
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


def _sweep(shard: CpuShard, settled: Settled, add_sums: bool, all_sums: bool, distances: bool) -> LabelTally:
    """All rows, on all threads."""
    n, (C, D) = shard.n_rows, settled.sums.shape
    most_spans = SPANS // 2 if add_sums and C * D > MANY_SUMS else SPANS
    rows_per_span = max(ROWS_PER_LABELLED_SPAN, 8 * C if add_sums else 1, -(-n // most_spans))
    n_spans = -(-n // rows_per_span)
    tally = LabelTally(
        *settled.span_sums(n_spans if add_sums else 0),
        np.zeros(n_spans, dtype=np.bool_), np.zeros((n_spans, 2)), np.zeros((n_spans, 3), dtype=np.int64),
    )  # fmt: skip
    task = Task(not settled.is_known, all_sums, distances)
    given, nominees, shifts = settled.given, settled.nominees, settled.shifts
    state = RowState(shard.labels, settled.held, settled.room, settled.squares)

    def sweep(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        spans = runs_of(part, rows_per_span)
        with settled.block() as block:
            assign_spans(
                queue, rows_per_span, rows, given.of(part), nominees, shifts, task,
                RowState(*(each[part] for each in state)), block, LabelTally(*(each[spans] for each in tally)),
            )  # fmt: skip

    seconds = SECONDS_PER_PRODUCT * n * (C + 16) * D
    on_rows(shard.rows, worth_waking(shard.n_threads, seconds), sweep, length=rows_per_span, calls_blas=False)
    return tally
