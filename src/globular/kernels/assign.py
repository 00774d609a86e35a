"""The hard pass as one call per thread: every row to its closest centre, and what moved.

Rows come in spans, and a thread takes the next span until none is left (`kernels.queue`). What a span adds up goes to
its own place, so results do not depend on threads. Per row the pass keeps `held`, its label; `squares`, ‖x − offset‖²;
and `room`, how far centres may move before the label can change (Hamerly's two bounds in one number; see `nominate`).
A row whose room outlasts the shifts of the centres is not even read. The others wait in a block until it is full; the
block is scored, and rows without room after that are compared exactly with whatever may be closer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import Queue, Scratch, inline, kernel, take_number, twin
from globular.jit.tiles import ROWS
from globular.kernels.label import label_block
from globular.kernels.nominate import ROUND_DOWN
from globular.kernels.rows import squared_distance

STRETCH = 4096
"""Rows that are looked through for those to be labelled before these are."""


class RowState(NamedTuple):
    """What is kept of every row, each (n,)."""

    labels: Any  # int32, as others see them
    held: Any  # int32, as the last pass left them
    room: Any  # float32
    squares: Any  # in the rows' dtype


class Tally(NamedTuple):
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


@twin
def square_of(rows: Any, i: int, scale: float, offset: Any) -> float:
    """‖x − offset‖² or, where there is none, ‖s x‖² in float64. O(D) or O(nnz)."""
    x = rows[0]
    total = 0.0
    if offset.shape[0]:
        for j in range(x.shape[1]):
            value = x[i, j] - offset[j]
            total += value * value
    else:
        for j in range(x.shape[1]):
            value = scale * x[i, j]
            total += value * value
    return total


@square_of.for_csr
def _square_of(rows: Any, i: int, scale: float, offset: Any) -> float:
    data, _, indptr = rows
    total = 0.0
    for k in range(indptr[i], indptr[i + 1]):
        total += (scale * data[k]) * (scale * data[k])
    return total


@twin
def add_one(rows: Any, i: int, factor: float, offset: Any, sums: Any, c: int) -> None:
    """sums[c] += factor · (x − offset). O(D) or O(nnz)."""
    x = rows[0]
    if offset.shape[0]:
        for j in range(x.shape[1]):
            sums[c, j] += factor * (x[i, j] - offset[j])
    else:
        for j in range(x.shape[1]):
            sums[c, j] += factor * x[i, j]


@add_one.for_csr
def _add_one(rows: Any, i: int, factor: float, offset: Any, sums: Any, c: int) -> None:
    data, indices, indptr = rows
    for k in range(indptr[i], indptr[i + 1]):
        sums[c, indices[k]] += factor * data[k]


@twin
def move_one(rows: Any, i: int, factor: float, offset: Any, sums: Any, former: int, c: int) -> None:
    """Take factor · (x − offset) from sums[former] and add it to sums[c], another one. O(D) or O(nnz)."""
    x = rows[0]
    if offset.shape[0]:
        for j in range(x.shape[1]):
            value = factor * (x[i, j] - offset[j])
            sums[former, j] -= value
            sums[c, j] += value
    else:
        for j in range(x.shape[1]):
            value = factor * x[i, j]
            sums[former, j] -= value
            sums[c, j] += value


@move_one.for_csr
def _move_one(rows: Any, i: int, factor: float, offset: Any, sums: Any, former: int, c: int) -> None:
    add_one(rows, i, -factor, offset, sums, former)
    add_one(rows, i, factor, offset, sums, c)


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
    if former < 0:
        add_one(rows, i, factor, given.offset, tally.sums[span], c)
    else:
        tally.counts[span, former] -= weight
        move_one(rows, i, factor, given.offset, tally.sums[span], former, c)


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
            square = square_of(rows, i, scale, given.offset)
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
    for i in range(block.order.shape[0]):
        block.order[i] = i
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
