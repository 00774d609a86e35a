"""Rows against the centres of cells, one compiled call per thread and pass: what probing, trees of cells and seeds do.

Each row is in one cell; rows are grouped by it, and a group shares its candidates. A thread takes tasks, some rows of
one cell, until none is left; it copies a block of them together, so that the block and its scores stay in the cache.
Results go to places of the rows alone, so it does not matter who does a task. Rows that kernels cannot index where they
lie (other types than float32 and float64, rows picked from others) are brought together task by task.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, new_queue, share_kernel, take_number
from globular.jit.blas import multiply_rows
from globular.jit.memory import as_matrix, order_key
from globular.model.statistics import F64, Floats
from globular.passes.cpu.engine.decide import STATE, TILE, insert, lower_block, lower_few_columns
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.engine.rows import squared_distance
from globular.passes.cpu.engine.score import ScoredCenters, Visit, Workspace, score_block
from globular.passes.cpu.grouped import ROWS_PER_TASK
from globular.passes.cpu.rows import CSRRows, KernelRows, in_place, on_rows, on_tasks, picked_in_place
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import CACHED_NUMBERS, NO_NUMBERS, NONE
from globular.seam.passes import Labels
from globular.threads import SECONDS_PER_NUMBER, worth_waking

Tasks = NDArray[np.int64]
"""(T, 3): a cell, and some of its rows, order[begin:end] of rows grouped by cell."""

BLOCK_ROWS = (16, 512)
"""Least and most rows of a block; larger = larger products, which leave the cache. A task is one or two of the largest:
enough of them for many threads also where rows are few."""
CENTERS_AT_ONCE = 256
"""Most centres that a block of rows is compared with at once, whole tiles; larger = larger products, and fewer rows."""
SECONDS_PER_ROW = 1e-7
"""Of a row and the centres of a cell, about: in 2 columns it is 0.08 µs, in 32 it is 0.3."""
THIN = 8
"""Columns up to which rows are multiplied by our own kernel: BLAS would mostly pack and unpack."""
PREPARED_AT_ONCE = 1 << 14
"""Numbers of centres that a thread takes at once."""
AS_THEY_ARE = np.empty(0, dtype=np.intp)
"""An order of centres."""


@kernel
def prepare_centers(
    queue: Queue,  # IN/OUT blocks of members
    size: int,  # IN  members of a block
    centers: Any,  # IN  (C, D) float64
    members: Any,  # IN  (C,) the centres in the order that is wanted, or empty: as they are
    offset: Any,  # IN  (D,) or empty
    factor: float,  # IN
    norms: Any,  # OUT (C,) ‖m‖²
    score_norms: Any,  # OUT (C,) ‖m − offset‖² in that order
    factors: Any,  # OUT (C, D) factor · (m − offset) in that order
) -> None:
    """What products of rows and centres take. O(C · D)."""
    C, D = centers.shape
    begin = size * take_number(queue)
    while begin < C:
        for k in range(begin, min(begin + size, C)):
            c = members[k] if members.shape[0] else k
            norm, score_norm = 0.0, 0.0
            for j in range(D):
                norm += centers[c, j] * centers[c, j]
            if offset.shape[0]:
                for j in range(D):
                    shifted = centers[c, j] - offset[j]
                    score_norm += shifted * shifted
                    factors[k, j] = factor * shifted
            else:
                score_norm = norm
                for j in range(D):
                    factors[k, j] = factor * centers[c, j]
            norms[c], score_norms[k] = norm, score_norm
        begin = size * take_number(queue)


def prepared(
    centers: F64, factor: float, dtype: np.dtype, n_threads: int, members: NDArray[np.intp] = AS_THEY_ARE,
    offset: F64 = NONE,
) -> tuple[F64, Floats, Floats]:  # fmt: skip
    """‖m‖² of the centres; ‖m − offset‖² and factor · (m − offset) in the order of `members`, in another precision."""
    norms, score_norms, factors = np.empty(len(centers)), np.empty(len(centers), dtype), np.empty(centers.shape, dtype)
    (C, D), queue = centers.shape, new_queue()
    size = 1 + PREPARED_AT_ONCE // max(1, D)
    threads = worth_waking(min(n_threads, -(-C // size)), SECONDS_PER_NUMBER * C * D)
    share_kernel(
        lambda: prepare_centers(queue, size, centers, members, offset, factor, norms, score_norms, factors), queue,
        threads, calls_blas=False,
    )  # fmt: skip
    return norms, score_norms, factors


class Known(IntEnum):
    """What is known of rows before they visit a cell."""

    NOTHING = 0  # they get the closest centre of the cell
    LABELS = 1  # the distances to the centres of these are still to be measured
    DISTANCES = 2


HEAT = 16  # cells per heat of the tournament that finds the closest ones


@kernel
def closest_cells(
    scores: Any,  # IN  (n, cells) −2 x·(m − offset)
    score_norms: Any,  # IN  (cells,) ‖m − offset‖²
    scales: Any,  # IN  (n,) or empty
    cells: Any,  # OUT (n, p) the p cells of lowest score, lowest first
    keys: Any,  # scratch (cells rounded up to a multiple of HEAT,) integers as wide as a score
    winners: Any,  # scratch (cells / HEAT, rounded up) of the same type
) -> None:
    """The p closest cells of every row, up to rounding, by a tournament of order keys. O(n · (cells + p · HEAT))."""
    n, n_cells = scores.shape
    n_heats = winners.shape[0]
    last = np.iinfo(keys.dtype).max
    for g in range(n_cells, keys.shape[0]):
        keys[g] = last
    for i in range(n):
        stretch = score_norms.dtype.type(scales[i] if scales.shape[0] else 1.0)
        for g in range(n_cells):
            keys[g] = order_key(score_norms[g] + stretch * scores[i, g])
        for h in range(n_heats):
            winners[h] = lowest_of_heat(keys, h)
        for a in range(cells.shape[1]):
            heat = 0
            for h in range(1, n_heats):
                heat = h if winners[h] < winners[heat] else heat
            for g in range(heat * HEAT, (heat + 1) * HEAT):
                if keys[g] == winners[heat]:
                    cells[i, a] = g
                    keys[g] = last
                    break
            winners[heat] = lowest_of_heat(keys, heat)


@inline
def lowest_of_heat(keys: Any, heat: int) -> int:
    """The lowest key of a heat. It vectorises."""
    lowest = keys[heat * HEAT]
    for g in range(HEAT):
        key = keys[heat * HEAT + g]
        lowest = key if key < lowest else lowest
    return lowest


@kernel
def merge_closest(
    scores: Any,  # IN  (n, members) −2 x·(m − offset)
    score_norms: Any,  # IN  (members,) ‖m − offset‖²
    scales: Any,  # IN  (N,) or empty
    chosen: Any,  # IN  (n,) the rows' numbers in the shard
    members: Any,  # IN  (members,) numbers of the cells
    costs: Any,  # IN/OUT (N, p) the p lowest scores so far, ascending
    cells: Any,  # IN/OUT (N, p) whose they are
) -> None:
    """Keep the p closest cells of every row among those known and these. O(n · members), a little more for finds."""
    n, n_members = scores.shape
    for k in range(n):
        i, p = chosen[k], cells.shape[1]
        row_costs, row_cells = costs[i], cells[i]
        stretch = score_norms.dtype.type(scales[i] if scales.shape[0] else 1.0)
        for g in range(n_members):
            cost = score_norms[g] + stretch * scores[k, g]
            if cost < row_costs[p - 1]:
                insert(cost, members[g], row_costs, row_cells, p)


@inline
def block_size(scratch: Any, width: int) -> int:
    """Rows whose scores with some centres fit into the workspace."""
    return min(scratch.lengths.shape[0], scratch.scores.shape[0] // width)


@inline
def score_in_turn(rows: Any, begin: int, places: Any, offset: Any, centers: Any, scratch: Any, scores: Any) -> None:
    """Scores of the rows that lie at places[begin], …; or at begin, … where there are no places."""
    m, n_centers = scores.shape
    in_turn = places.shape[0] == 0
    if len(rows) == 1 and in_turn and offset.shape[0] == 0 and not centers.across:
        multiply_rows(rows[0], begin, m, centers.factors, 0, n_centers, scores)
        return
    for k in range(m):
        scratch.at[k] = begin + k if in_turn else places[begin + k]
    score_block(rows, scratch.at[:m], offset, centers, 0, scratch, scores)


@kernel
def route_rows(
    queue: Queue,  # IN/OUT blocks of rows
    rows: Any,  # IN
    visit: Any,  # IN  without tasks; the places may be empty: 0, 1, 2, …
    centers: Any,  # IN  the cells
    found: Any,  # OUT (N, p) the p closest cells of every row, closest first
    scratch: Scratch,
) -> None:
    """Each row against all cells. O(N · (cells · D + p · HEAT))."""
    n, n_cells = found.shape[0], centers.score_norms.shape[0]
    B = block_size(scratch, n_cells)
    begin = B * take_number(queue)
    while begin < n:
        end = min(begin + B, n)
        block = as_matrix(scratch.scores, end - begin, n_cells)
        score_in_turn(rows, begin, visit.places, visit.offset, centers, scratch, block)
        closest_cells(
            block, centers.score_norms, visit.scales[begin:end], found[begin:end], scratch.keys, scratch.winners
        )
        begin = B * take_number(queue)


@kernel
def merge_cells(
    queue: Queue,  # IN/OUT tasks
    visit: Any,  # IN
    centers: Any,  # IN  the cells, by the cells above
    costs: Any,  # IN/OUT (N, p) the p lowest scores so far, ascending
    found: Any,  # IN/OUT (N, p) whose they are
    scratch: Scratch,
) -> None:
    """Each row against the cells in one of the cells above. O(N · D · members)."""
    t = take_number(queue)
    while t < visit.tasks.shape[0]:
        first, stop = centers.starts[visit.tasks[t, 0]], centers.starts[visit.tasks[t, 0] + 1]
        B = block_size(scratch, stop - first)
        for begin in range(visit.tasks[t, 1], visit.tasks[t, 2], B):
            end = min(begin + B, visit.tasks[t, 2])
            block = as_matrix(scratch.scores, end - begin, stop - first)
            score_block(visit.rows, visit.places[begin:end], visit.offset, centers, first, scratch, block)
            merge_closest(
                block, centers.score_norms[first:stop], visit.scales, visit.order[begin:end],
                centers.members[first:stop], costs, found,
            )  # fmt: skip
        t = take_number(queue)


@kernel
def lower_cells(
    queue: Queue,  # IN/OUT tasks
    visit: Any,  # IN
    centers: Any,  # IN
    known: int,  # IN  of the rows, see `Known`
    best: Any,  # IN/OUT (N,) squared distance to the label's centre
    labels: Any,  # IN/OUT (N,) −1: none yet
    scratch: Scratch,
) -> None:
    """Each row to the closest centre of one cell if it is closer than its own, exactly. O(N · D · members)."""
    t, most = take_number(queue), TILE * scratch.keys.shape[0]
    while t < visit.tasks.shape[0]:
        first, stop = centers.starts[visit.tasks[t, 0]], centers.starts[visit.tasks[t, 0] + 1]
        B = block_size(scratch, min(most, stop - first))
        for begin in range(visit.tasks[t, 1], visit.tasks[t, 2], B):
            end = min(begin + B, visit.tasks[t, 2])
            at, chosen = visit.places[begin:end], visit.order[begin:end]
            if known == Known.NOTHING:
                for k in range(end - begin):
                    labels[chosen[k]] = -1
            elif known == Known.LABELS:
                for k in range(end - begin):
                    i = chosen[k]
                    scale = visit.scales[i] if visit.scales.shape[0] else 1.0
                    best[i] = squared_distance(visit.rows, at[k], scale, centers.centers, labels[i], centers.norms)
            if centers.across == 1 and len(visit.rows) == 1:
                lower_few_columns(
                    visit.rows, at, chosen, visit.scales, visit.offset, centers, first, stop, scratch, best, labels
                )
                continue
            for c in range(first, stop, most):
                block = as_matrix(scratch.scores, end - begin, min(most, stop - c))
                score_block(visit.rows, at, visit.offset, centers, c, scratch, block)
                lower_block(visit.rows, at, chosen, visit.scales, centers, c, block, scratch, best, labels)
        t = take_number(queue)


def threads_for_cells(shard: CpuShard) -> int:
    """Threads for a pass of all rows over a cell each: small batches are not worth waking all of them for."""
    return worth_waking(shard.n_threads, SECONDS_PER_ROW * shard.n_rows)


def cell_tasks(starts: NDArray[np.int64], size: int) -> Tasks:
    """All rows, grouped by cell, in tasks of one cell each and at most `size` rows."""
    n_tasks = -(-np.diff(starts) // size)
    cell = np.repeat(np.arange(len(n_tasks)), n_tasks)
    within = np.arange(len(cell)) - np.repeat(np.cumsum(n_tasks) - n_tasks, n_tasks)
    begin = starts[cell] + size * within
    return np.stack([cell, begin, np.minimum(begin + size, starts[cell + 1])], axis=1)


def for_cells(
    shard: CpuShard, cell_of: Labels, n_cells: int, work: Callable[[NDArray[np.int64], Visit], None]
) -> NDArray[np.int64]:
    """Rows grouped by cell, all tasks done on our threads: `work` gets a queue of them. Returns the sizes of cells."""
    starts, order = group_by(cell_of, n_cells, shard.n_threads)
    lying = in_place(shard.rows, order, shard.n_threads)
    tasks = cell_tasks(starts, BLOCK_ROWS[1] if lying else ROWS_PER_TASK)

    def visit(queue: NDArray[np.int64], some: slice, rows: KernelRows, places: NDArray[np.integer]) -> None:
        work(queue, Visit(tasks[some], rows, order, places, shard.scales, shard.origin))

    on_tasks(shard.rows, order, tasks[:, 1], threads_for_cells(shard), visit, lying=lying, calls_blas=True)
    return np.diff(starts)


class CellProduct:
    """Centres in the order of their cells, prepared for products with rows.

    `members` are the centres in that order; cell g is members[starts[g]:starts[g + 1]]. Labels begin with `base`.
    `at_once`: factors lie column by column, which suits products with all centres at once.
    """

    def __init__(
        self,
        shard: CpuShard,
        centers: F64,
        members: NDArray[np.intp],
        starts: NDArray[np.intp],
        base: int = 0,
        at_once: bool = False,
    ) -> None:
        self._shard, self._dtype = shard, shard.rows.dtype
        centers = np.ascontiguousarray(centers, dtype=np.float64)
        starts = np.asarray(starts, dtype=np.int64)
        info = np.finfo(self._dtype)
        few = isinstance(shard.rows, CSRRows) or 0 < shard.n_columns <= THIN
        across = 1 if few else 2 if at_once else 0
        norms, score_norms, factors = prepared(centers, -2.0, self._dtype, shard.n_threads, members, shard.origin)
        factors = cast(Floats, np.ascontiguousarray(factors.T) if across else factors)
        self.centers = ScoredCenters(
            starts, members, factors, score_norms, centers, norms, base, across, float(info.eps) / 2, float(info.tiny)
        )
        self._largest = int(np.diff(starts).max(initial=1))

    def closest(self, n: int) -> Labels:
        """The n closest centres of every row up to rounding, closest first, all cells taken together, (N, n)."""
        shard, n_centers = self._shard, len(self.centers.members)
        # columns lie together, since rows are then grouped by one of them
        found: Labels = np.empty((n, shard.n_rows), dtype=np.int32).T
        n_heats = -(-n_centers // HEAT)

        def route(queue: NDArray[np.int64], rows: KernelRows, part: slice, places: NDArray[np.int64]) -> None:
            visit = self._visit(rows, part, places, NO_NUMBERS.reshape(0, 3))
            scratch = self.workspace(n_centers, n_heats * HEAT, n_heats)
            route_rows(queue, rows, visit, self.centers, found[part], scratch)

        picked = picked_in_place(shard.rows)
        if picked is None:
            on_rows(
                shard.rows, threads_for_cells(shard), lambda queue, rows, part: route(queue, rows, part, NO_NUMBERS)
            )
        else:
            queue, everyone = new_queue(), slice(0, shard.n_rows)
            share_kernel(lambda: route(queue, picked[0], everyone, picked[1]), queue, threads_for_cells(shard))
        return found

    def merge_closest(self, cell_of: Labels, costs: Floats, found: Labels) -> int:
        """Lower the costs of the centres that each row has found by those of one cell; returns distances."""

        def merge(queue: NDArray[np.int64], visit: Visit) -> None:
            merge_cells(queue, visit, self.centers, costs, found, self.workspace(self._largest))

        return self._for_cells(cell_of, merge)

    def search(self, cell_of: Labels, best: F64, labels: Labels, known: Known) -> int:
        """Each row to the closest centre of one cell if that is closer than its own; returns distances."""

        def search(queue: NDArray[np.int64], visit: Visit) -> None:
            lower_cells(queue, visit, self.centers, known, best, labels, self._workspace_to_lower())

        return self._for_cells(cell_of, search)

    def search_all(self, best: F64, labels: Labels) -> None:
        """`search` where there is one cell."""

        def search(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
            visit, scratch = self.visit(rows, part, BLOCK_ROWS[1]), self._workspace_to_lower()
            lower_cells(queue, visit, self.centers, Known.DISTANCES, best[part], labels[part], scratch)

        on_rows(self._shard.rows, self._shard.n_threads, search)

    def visit(self, rows: KernelRows, part: slice, size: int) -> Visit:
        """Rows as they come, in tasks of `size` of them, which visit the first cell."""
        in_turn = np.arange(part.stop - part.start)
        return self._visit(rows, part, in_turn, cell_tasks(np.array([0, len(in_turn)]), size))

    def _visit(self, rows: KernelRows, part: slice, places: NDArray[np.int64], tasks: Tasks) -> Visit:
        shard = self._shard
        return Visit(tasks, rows, places, places, shard.scales[part], shard.origin)

    def _for_cells(self, cell_of: Labels, work: Callable[[NDArray[np.int64], Visit], None]) -> int:
        sizes = np.diff(self.centers.starts)
        return int(for_cells(self._shard, cell_of, len(sizes), work) @ sizes)

    def _workspace_to_lower(self) -> Workspace:
        width = min(self._largest, CENTERS_AT_ONCE)
        return self.workspace(width, -(-width // TILE), TILE)

    def workspace(self, width: int, n_keys: int = 0, n_winners: int = 0) -> Workspace:
        """Memory of one thread: a block of rows, and their scores with `width` centres."""
        (least, most), dtype = BLOCK_ROWS, self._dtype
        seen = np.empty((most, self._shard.n_columns), dtype=dtype)
        room = max(CACHED_NUMBERS, least * width, (STATE + THIN) * TILE)  # at least for rows in lanes
        return new_workspace(seen, np.empty(room, dtype=dtype), n_keys, n_winners)


def new_workspace(seen: Floats, scores: Floats, n_keys: int = 0, n_winners: int = 0) -> Workspace:
    """Memory of one thread for as many rows as `seen` has."""
    keys, winners = (np.empty(n, dtype=f"i{scores.itemsize}") for n in (n_keys, n_winners))
    return Workspace(seen, scores, np.empty(len(seen)), np.empty(len(seen), dtype=np.int64), keys, winners)
