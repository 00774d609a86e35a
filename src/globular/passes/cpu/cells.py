"""Rows against the centres of cells, one compiled call per thread and pass: what probing and trees of cells do.

Each row is in one cell; rows are grouped by it, and a group shares its candidates. Rows that kernels cannot index where
they lie (other types than float32 and float64, rows picked from others) are brought together task by task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.kernels import cells as kernels
from globular.kernels import thin, thin_cells
from globular.kernels.nearest import TILE
from globular.kernels.probe import HEAT
from globular.model.groups import group_by
from globular.model.statistics import F64, Floats
from globular.passes.cpu.grouped import ROWS_PER_TASK
from globular.passes.cpu.products import THIN, prepared
from globular.passes.cpu.rows import CSRRows, KernelRows, gather_rows, in_place, on_rows, picked_in_place
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import CACHED_NUMBERS, NONE
from globular.seam.passes import Labels
from globular.threads import run_all, worth_waking

Tasks = NDArray[np.int64]
"""(T, 3): a cell, and some of its rows, order[begin:end] of rows grouped by cell."""

BLOCK_ROWS = (16, 512)
"""Least and most rows of a block. A task is one or two of the largest: enough of them for many threads also where rows
are few."""
SECONDS_PER_ROW = 1e-7
"""Of a row and the centres of a cell, about: in 2 columns it is 0.08 µs, in 32 it is 0.3."""


def threads_for_cells(shard: CpuShard) -> int:
    """Threads for a pass of all rows over a cell each: small batches are not worth waking all of them for."""
    return worth_waking(shard.n_threads, SECONDS_PER_ROW * shard.n_rows)


def cell_tasks(starts: NDArray[np.int64], size: int) -> Tasks:
    """All rows, grouped by cell, in tasks of one cell each and at most so many rows."""
    n_tasks = -(-np.diff(starts) // size)
    cell = np.repeat(np.arange(len(n_tasks)), n_tasks)
    within = np.arange(len(cell)) - np.repeat(np.cumsum(n_tasks) - n_tasks, n_tasks)
    begin = starts[cell] + size * within
    return np.stack([cell, begin, np.minimum(begin + size, starts[cell + 1])], axis=1)


class CellShare(NamedTuple):
    """What a thread is to do: tasks of a queue, and rows that go with them."""

    queue: NDArray[np.int64]
    tasks: Tasks
    rows: KernelRows
    order: NDArray[np.integer]
    """Row numbers by cell."""
    places: NDArray[np.integer]
    """Where these lie in `rows`."""


def for_cells(
    shard: CpuShard, cell_of: Labels, n_cells: int, work: Callable[[CellShare, NDArray[np.int64]], None]
) -> tuple[int, NDArray[np.int64]]:
    """Rows grouped by cell, all tasks done on our threads.

    `work` also gets a number to write for each task. Returns their sum, and how many rows each cell has.
    """
    starts, order = group_by(cell_of, n_cells, shard.n_threads)
    rows, indexed = shard.rows, in_place(shard.rows, order, shard.n_threads)
    tasks = cell_tasks(starts, BLOCK_ROWS[1] if indexed else ROWS_PER_TASK)
    numbers = np.zeros(len(tasks), dtype=np.int64)
    if indexed:
        share = CellShare(new_queue(), tasks, indexed[0], order, indexed[1])
        share_kernel(lambda: work(share, numbers), share.queue, threads_for_cells(shard))
    else:

        def gathered(t: int) -> None:
            cell, begin, end = tasks[t]
            task, chosen = np.array([[cell, 0, end - begin]]), order[begin:end]
            places = np.arange(len(chosen), dtype=order.dtype)
            share = CellShare(new_queue(), task, gather_rows(rows, chosen), chosen, places)
            work(share, numbers[t : t + 1])

        run_all(gathered, range(len(tasks)), shard.n_threads)
    return int(numbers.sum()), np.diff(starts)


class CellProduct:
    """Centres in the order of their cells, prepared for products with rows.

    `members` are the centres in that order; cell g is members[starts[g]:starts[g + 1]].
    """

    def __init__(self, shard: CpuShard, centers: F64, members: NDArray[np.intp], starts: NDArray[np.intp]) -> None:
        self._shard, self._dtype = shard, shard.rows.dtype
        self.centers = np.ascontiguousarray(centers, dtype=np.float64)
        self.members, self.starts = members, np.asarray(starts, dtype=np.int64)
        self.offset = NONE if shard.offset is None else shard.offset
        is_sparse = isinstance(shard.rows, CSRRows)
        self.is_thin = not is_sparse and 0 < shard.n_columns <= THIN
        self.norms, self.score_norms, factors = prepared(
            self.centers, -2.0, self._dtype, shard.n_threads, members, self.offset
        )
        self.factors = cast(Floats, np.ascontiguousarray(factors.T) if self.is_thin or is_sparse else factors)
        self._largest = int(np.diff(starts).max(initial=1))

    def closest(self, n: int) -> Labels:
        """The n closest centres of every row up to rounding, closest first, all cells taken together, (N, n)."""
        shard, n_centers = self._shard, len(self.members)
        # columns lie together, since rows are then grouped by one of them
        found: Labels = np.empty((n, shard.n_rows), dtype=np.int32).T
        n_heats = -(-n_centers // HEAT)
        in_turn = np.empty(0, dtype=np.int64)

        def route(queue: NDArray[np.int64], rows: KernelRows, part: slice, places: NDArray[np.int64] = in_turn) -> None:
            seen, scores, lengths = self._scratch()
            block = min(len(lengths), len(scores) // n_centers)
            keys, winners = self.keys(n_heats * HEAT), self.keys(n_heats)
            if self.is_thin:
                thin_cells.route_thin(
                    queue, rows, shard.scales[part], self.offset, self.factors, self.score_norms, seen,
                    scores[: block * n_centers].reshape(block, n_centers), keys, winners, found[part],
                )  # fmt: skip
                return
            kernels.route_rows(
                queue, rows, places, shard.scales[part], self.offset, self.factors, self.score_norms, seen, scores,
                lengths[:block], keys, winners, found[part],
            )  # fmt: skip

        picked = None if self.is_thin else picked_in_place(shard.rows)
        if picked is None:
            on_rows(shard.rows, threads_for_cells(shard), route)
        else:
            queue, everyone = new_queue(), slice(0, shard.n_rows)
            share_kernel(lambda: route(queue, picked[0], everyone, picked[1]), queue, threads_for_cells(shard))
        return found

    def merge_closest(self, cell_of: Labels, costs: Floats, found: Labels) -> int:
        """Lower the costs of the centres that each row has found by those of one cell; returns distances."""
        shard = self._shard

        def merge(share: CellShare, numbers: NDArray[np.int64]) -> None:
            arguments = (
                *share, shard.scales, self.offset, self.starts, self.members, self.factors, self.score_norms,
            )  # fmt: skip
            seen, scores, lengths = self._scratch()
            if self.is_thin:
                block = scores[: len(scores) // self._largest * self._largest].reshape(-1, self._largest)
                thin_cells.merge_cells_of_thin(*arguments, seen, block[: len(seen)], costs, found)
            else:
                kernels.merge_cells(*arguments, seen, scores, lengths, costs, found)

        return self._n_distances(for_cells(shard, cell_of, len(self.starts) - 1, merge)[1])

    def search(self, cell_of: Labels, former: Labels, best: F64, labels: Labels, *, is_first: bool) -> int:
        """Lower the squared distances and labels of all rows by the centres of one cell each; returns distances.

        In the first round they are measured before, and the labels noted in `former`.
        """
        shard = self._shard

        def search(share: CellShare, numbers: NDArray[np.int64]) -> None:
            arguments = (
                *share, shard.scales, self.offset, self.starts, self.members, self.factors, self.score_norms,
                self.centers, self.norms, is_first, former, best, labels,
            )  # fmt: skip
            if self.is_thin:
                thin_cells.search_cells_of_thin(*arguments, *self.lanes(), np.empty(thin.LANES))
            else:
                kernels.search_cells(*arguments, *self._scratch(), self.keys(self._largest // TILE + 1))

        return self._n_distances(for_cells(shard, cell_of, len(self.starts) - 1, search)[1])

    def descend(self, cell_of: Labels, children: Labels, d2: F64) -> tuple[int, int]:
        """Each row to the exactly closest centre of its cell; how many changed, and distances.

        `members` must be 0, 1, 2, …
        """
        shard, dtype = self._shard, self._dtype
        unit, tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny)

        def descend(share: CellShare, changed: NDArray[np.int64]) -> None:
            arguments = (
                *share, shard.scales, self.offset, self.starts, self.factors, self.score_norms, self.centers,
                self.norms, unit, tiny, children, d2, changed,
            )  # fmt: skip
            if self.is_thin:
                gathered, seen = np.empty((2, thin.LANES, shard.n_columns), dtype=dtype)
                found = np.empty(thin.LANES, dtype=np.int32)
                thin_cells.descend_cells_of_thin(
                    *arguments, gathered, seen, np.empty((3, thin.LANES)), found, *self.lanes()
                )
                return
            scratch = self._scratch()
            n = len(scratch[-1])
            stretches = np.empty(n) if len(shard.scales) else NONE
            kernels.descend_cells(*arguments, *scratch, stretches, np.empty(n), np.empty(n, dtype=np.int32))

        n_changed, sizes = for_cells(shard, cell_of, len(self.starts) - 1, descend)
        return n_changed, self._n_distances(sizes)

    def _n_distances(self, rows_of_cells: NDArray[np.int64]) -> int:
        return int(rows_of_cells @ np.diff(self.starts))

    def _scratch(self) -> tuple[Floats, Floats, F64]:
        """Memory of one thread: a block of rows, their scores with the largest cell, their lengths."""
        least, most = BLOCK_ROWS
        seen = np.empty((most, self.centers.shape[1]), dtype=self._dtype)
        return seen, np.empty(max(CACHED_NUMBERS, least * self._largest), dtype=self._dtype), np.empty(most)

    def lanes(self) -> tuple[Floats, NDArray[np.int32]]:
        """The same for the kernels of thin rows."""
        shape = (thin.STATE + self.centers.shape[1], thin.LANES)
        return np.empty(shape, dtype=self._dtype), np.empty(thin.LANES, dtype=np.int32)

    def keys(self, n: int) -> NDArray[np.generic]:
        """So many integers as wide as a score."""
        return np.empty(n, dtype=np.int32 if self._dtype == np.float32 else np.int64)
