"""Rows against the centres of cells, one compiled call per thread and pass: what probing, trees of cells and seeds do.

Each row is in one cell; rows are grouped by it, and a group shares its candidates. A thread takes tasks, some rows of
one cell, until none is left; it copies a block of them together, so that the block and its scores stay in the cache.
Results go to places of the rows alone, so it does not matter who does a task. Rows that kernels cannot index where they
lie (other types than float32 and float64, rows picked from others) are brought together task by task.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, new_queue, share_kernel, take_number
from globular.jit.memory import as_matrix, order_key
from globular.jit.tiles import ROWS, Tile, line_tile, tile_for
from globular.model.statistics import F64, Floats
from globular.passes.cpu.engine.decide import insert, lower_block
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.engine.rows import squared_distance
from globular.passes.cpu.engine.score import (
    Block,
    Nominees,
    Visit,
    bounds_for,
    chunk_of,
    new_block,
    rows_for_table,
    score_block,
    set_largest,
)
from globular.passes.cpu.grouped import ROWS_PER_TASK
from globular.passes.cpu.rows import CSRRows, KernelRows, aligned_zeros, in_place, on_rows, on_tasks, picked_in_place
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import CACHED_NUMBERS, NONE
from globular.seam.passes import Labels
from globular.threads import SECONDS_PER_NUMBER, worth_waking

Tasks = NDArray[np.int64]
"""(T, 3): a cell, and some of its rows, order[begin:end] of rows grouped by cell."""

BLOCK_ROWS = (16, 512)
"""Least and most rows of a block; larger = larger products, which leave the cache. A task is one or two of the largest:
enough of them for many threads also where rows are few."""
SECONDS_PER_ROW = 1e-7
"""Seconds for a row and the centres of a cell, about: 0.08 µs in 2 columns, 0.3 in 32."""
PREPARED_AT_ONCE = 1 << 14
"""Numbers of centres that a thread takes at once."""
ONE = Tile(1, 1)
"""Centres as they are."""


@kernel
def prepare_centers(
    queue: Queue,  # IN/OUT blocks of positions
    size: int,  # IN  positions of a block
    centers: Any,  # IN  (C, D) float64
    members: Any,  # IN  (K,) the centre at each position; −1: none
    offset: Any,  # IN  (D,) or empty
    factor: float,  # IN
    norms: Any,  # OUT (C,) ‖m‖²
    score_norms: Any,  # OUT (K,) ‖m − offset‖² by position; it stays as it is where there is none
    factors: Any,  # OUT (K / width, D, width) factor · (m − offset)
) -> None:
    """What products of rows and centres take. O(K · D)."""
    K, D, width = members.shape[0], centers.shape[1], factors.shape[2]
    begin = size * take_number(queue)
    while begin < K:
        for k in range(begin, min(begin + size, K)):
            c, norm, score_norm = members[k], 0.0, 0.0
            if c < 0:
                continue
            for j in range(D):
                norm += centers[c, j] * centers[c, j]
            for j in range(D):
                shifted = centers[c, j] - offset[j] if offset.shape[0] else centers[c, j]
                score_norm += shifted * shifted
                factors[k // width, j, k % width] = factor * shifted
            norms[c], score_norms[k] = norm, score_norm
        begin = size * take_number(queue)


def prepared(
    centers: F64, factor: float, dtype: np.dtype, n_threads: int, members: NDArray[np.integer] | None = None,
    offset: F64 = NONE, tile: Tile = ONE,
) -> tuple[F64, Floats, Floats]:  # fmt: skip
    """‖m‖² of the centres; ‖m − offset‖² and factor · (m − offset) of the `members` in tiles, in another precision."""
    C, D = centers.shape
    members = np.arange(C) if members is None else members
    norms, score_norms = np.empty(C), np.full(len(members), 0.0625 / np.finfo(dtype).tiny, dtype)
    factors = aligned_zeros((len(members) // tile.width, D, tile.width), dtype)
    size, queue = 1 + PREPARED_AT_ONCE // max(1, D), new_queue()
    threads = worth_waking(min(n_threads, -(-len(members) // size)), SECONDS_PER_NUMBER * C * D)
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
    scores: Any,  # IN  (n, ≥ cells)
    n_cells: int,  # IN
    cells: Any,  # OUT (n, p) the p cells of lowest score, lowest first
    heats: Any,  # scratch keys (cells rounded up to a multiple of HEAT,), integers as wide as a score, and winners
) -> None:
    """The p closest cells of every row, up to rounding, by a tournament of order keys. O(n · (cells + p · HEAT))."""
    n, keys, winners = cells.shape[0], heats.keys, heats.winners
    n_heats, last = winners.shape[0], np.iinfo(keys.dtype).max
    for g in range(n_cells, keys.shape[0]):
        keys[g] = last
    for i in range(n):
        for g in range(n_cells):
            keys[g] = order_key(scores[i, g])
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
def route_rows(
    queue: Queue,  # IN/OUT blocks of rows
    visit: Any,  # IN  without tasks: rows as they come
    nominees: Any,  # IN  the cells
    found: Any,  # OUT (N, p) the p closest cells of every row, closest first
    block: Scratch,  # scratch
    heats: Scratch,  # scratch
) -> None:
    """Each row against all cells. O(N · (cells · D + p · HEAT))."""
    n, stop = found.shape[0], nominees.starts[1]
    B = rows_for_table(block, stop)
    begin = B * take_number(queue)
    while begin < n:
        end = min(begin + B, n)
        score_block(visit.rows, visit.places[begin:end], visit.order[begin:end], visit.given, nominees, 0, stop, block)
        scores = as_matrix(block.table, end - begin, stop)
        closest_cells(scores, nominees.ends[0], found[begin:end], heats)
        begin = B * take_number(queue)


@kernel
def merge_cells(
    queue: Queue,  # IN/OUT tasks
    visit: Any,  # IN
    nominees: Any,  # IN  the cells, by the cells above
    costs: Any,  # IN/OUT (N, p) the p lowest scores so far, ascending
    found: Any,  # IN/OUT (N, p) whose they are
    block: Scratch,  # scratch
) -> None:
    """Each row against the cells in one of the cells above, of which the p closest are kept. O(N · D · members)."""
    t, last = take_number(queue), found.shape[1] - 1
    while t < visit.tasks.shape[0]:
        cell = visit.tasks[t, 0]
        first, stop = nominees.starts[cell], nominees.starts[cell + 1]
        B = rows_for_table(block, stop - first)
        for begin in range(visit.tasks[t, 1], visit.tasks[t, 2], B):
            end = min(begin + B, visit.tasks[t, 2])
            chosen = visit.order[begin:end]
            score_block(visit.rows, visit.places[begin:end], chosen, visit.given, nominees, first, stop, block)
            scores = as_matrix(block.table, end - begin, stop - first)
            for k in range(end - begin):
                row_costs, row_cells = costs[chosen[k]], found[chosen[k]]
                for c in range(first, nominees.ends[cell]):
                    if scores[k, c - first] < row_costs[last]:
                        insert(scores[k, c - first], nominees.members[c], row_costs, row_cells, last + 1)
        t = take_number(queue)


@kernel
def lower_cells(
    queue: Queue,  # IN/OUT tasks
    visit: Any,  # IN
    nominees: Any,  # IN
    base: int,  # IN  the label of centre 0
    known: int,  # IN  of the rows, see `Known`
    best: Any,  # IN/OUT (N,) squared distance to the label's centre
    labels: Any,  # IN/OUT (N,) −1: none yet
    block: Scratch,  # scratch
) -> None:
    """Each row to the closest centre of one cell if it is closer than its own, exactly. O(N · D · members)."""
    t, B, given = take_number(queue), block.best.shape[0], visit.given
    while t < visit.tasks.shape[0]:
        for begin in range(visit.tasks[t, 1], visit.tasks[t, 2], B):
            end = min(begin + B, visit.tasks[t, 2])
            at, chosen = visit.places[begin:end], visit.order[begin:end]
            if known == Known.NOTHING:
                for k in range(end - begin):
                    labels[chosen[k]] = -1
            elif known == Known.LABELS:
                for k in range(end - begin):
                    i = chosen[k]
                    scale = given.scales[i] if given.scales.shape[0] else 1.0
                    best[i] = squared_distance(visit.rows, at[k], scale, nominees.centers, labels[i], nominees.norms)
            lower_block(visit.rows, at, chosen, given, nominees, visit.tasks[t, 0], base, block, best, labels)
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
        work(queue, Visit(tasks[some], rows, order, places, shard.given))

    on_tasks(shard.rows, order, tasks[:, 1], threads_for_cells(shard), visit, lying=lying, calls_blas=True)
    return np.diff(starts)


class Heats(NamedTuple):
    """Scratch of a thread for the tournament, integers as wide as a score."""

    keys: NDArray[Any]
    winners: NDArray[Any]

    @classmethod
    def of(cls, n_cells: int, itemsize: int) -> Heats:
        """Empty heats for the scores of `n_cells` cells."""
        n = -(-n_cells // HEAT)
        return cls(np.empty(n * HEAT, dtype=f"i{itemsize}"), np.empty(n, dtype=f"i{itemsize}"))


class CellProduct:
    """Centres in the order of their cells, prepared for products with rows.

    `members` are the centres in that order, ascending in each cell; cell g is members[starts[g]:starts[g + 1]]; all
    centres are in one cell if there are none. Labels begin with `base`.
    """

    def __init__(
        self,
        shard: CpuShard,
        centers: F64,
        members: NDArray[np.integer] | None = None,
        starts: NDArray[np.integer] | None = None,
        base: int = 0,
    ) -> None:
        centers = np.ascontiguousarray(centers, dtype=np.float64)
        (C, D), dtype, self._shard, self._base = centers.shape, shard.rows.dtype, shard, base
        self._sizes = np.array([C]) if starts is None else np.diff(starts)
        self.across = isinstance(shard.rows, CSRRows)
        tile = line_tile(dtype.itemsize) if self.across else tile_for(-(-C // len(self._sizes)), D, dtype.itemsize)
        padded = -(-self._sizes // tile.step) * tile.step
        begins = np.concatenate([[0], np.cumsum(padded)])
        ends = begins[:-1] + self._sizes
        positions = np.arange(C) + np.repeat(ends - np.cumsum(self._sizes), self._sizes)
        placed = np.full(begins[-1], -1)
        placed[positions] = np.arange(C) if members is None else members
        laid = ONE if self.across else tile
        norms, score_norms, factors = prepared(centers, -2.0, dtype, shard.n_threads, placed, shard.origin, laid)
        if self.across:
            factors = np.ascontiguousarray(factors[:, :, 0].T)[None]
        self._largest = int(padded.max(initial=tile.step))
        self._chunk = chunk_of(self._largest, D, dtype.itemsize, tile.step, across=self.across)
        bounds, mask = bounds_for(dtype, D, shard.rows.most_terms(), self._chunk)
        set_largest(bounds, float(score_norms[positions].max(initial=0.0)))
        self.nominees = Nominees(centers, norms, factors, score_norms, mask, bounds, placed, begins, ends)

    def closest(self, n: int) -> Labels:
        """The n closest centres of every row up to rounding, closest first, all cells taken together, (N, n)."""
        shard, C = self._shard, len(self.nominees.centers)
        # columns lie together, since rows are then grouped by one of them
        found: Labels = np.empty((n, shard.n_rows), dtype=np.int32).T

        def route(queue: NDArray[np.int64], visit: Visit, part: slice) -> None:
            heats = Heats.of(C, shard.dtype.itemsize)
            route_rows(queue, visit, self.nominees, found[part], self.block(table=True), heats)

        picked = picked_in_place(shard.rows)
        if picked is None:
            on_rows(
                shard.rows, threads_for_cells(shard),
                lambda queue, rows, part: route(queue, self.visit(rows, part, BLOCK_ROWS[1]), part),
            )  # fmt: skip
        else:
            everyone, queue = slice(0, shard.n_rows), new_queue()
            visit = self.visit(picked[0], everyone, BLOCK_ROWS[1])._replace(places=picked[1])
            share_kernel(lambda: route(queue, visit, everyone), queue, threads_for_cells(shard))
        return found

    def merge_closest(self, cell_of: Labels, costs: Floats, found: Labels) -> int:
        """Lower the costs of the centres that each row has found by those of one cell; returns distances."""

        def merge(queue: NDArray[np.int64], visit: Visit) -> None:
            merge_cells(queue, visit, self.nominees, costs, found, self.block(table=True))

        return self._for_cells(cell_of, merge)

    def search(self, cell_of: Labels, best: F64, labels: Labels, known: Known) -> int:
        """Each row to the closest centre of one cell if that is closer than its own; returns distances."""

        def search(queue: NDArray[np.int64], visit: Visit) -> None:
            lower_cells(queue, visit, self.nominees, self._base, known, best, labels, self.block())

        return self._for_cells(cell_of, search)

    def search_all(self, best: F64, labels: Labels) -> None:
        """`search` where there is one cell."""

        def search(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
            visit = self.visit(rows, part, BLOCK_ROWS[1])
            lower_cells(
                queue, visit, self.nominees, self._base, Known.DISTANCES, best[part], labels[part], self.block()
            )

        on_rows(self._shard.rows, self._shard.n_threads, search)

    def visit(self, rows: KernelRows, part: slice, size: int) -> Visit:
        """Rows as they come, in tasks of `size` of them, which visit the first cell."""
        in_turn = np.arange(part.stop - part.start)
        tasks = cell_tasks(np.array([0, len(in_turn)]), size)
        return Visit(tasks, rows, in_turn, in_turn, self._shard.given.of(part))

    def _for_cells(self, cell_of: Labels, work: Callable[[NDArray[np.int64], Visit], None]) -> int:
        return int(for_cells(self._shard, cell_of, len(self._sizes), work) @ self._sizes)

    def block(self, rows: int = 0, *, table: bool = False) -> Block:
        """Memory of one thread: a block of rows, and room for a table of their scores with the centres of a cell."""
        (least, most), width = BLOCK_ROWS, self._largest
        rows = rows or (min(most, max(least, CACHED_NUMBERS // width)) if table else most)
        return new_block(
            self._shard.given, self._shard.dtype, self._chunk, across=self.across, n=rows,
            table=(rows + ROWS) * width if table else 0,
        )  # fmt: skip
