"""Rows in groups by their cluster: where each group begins, and where its rows lie.

Groups stay with the shard; the next pass moves only the rows whose label has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, inline, kernel, new_queue, share_kernel, take_number
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.shard import CpuShard
from globular.threads import SECONDS_PER_NUMBER, worth_waking

ROWS_PER_TASK = 4096
"""Least rows of a task: handing one out costs as much as a thousand rows."""


@inline
def count_up_to(ascending: Any, value: Any) -> int:
    """How many of the ascending values are at most this one; numba's own search takes long to compile. O(log n)."""
    low, high = 0, ascending.shape[0]
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def join_groups(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T + 1,) task t has the groups tasks[t] … tasks[t + 1] − 1
    starts: Any,  # IN  (C + 1,) where each group began
    order: Any,  # IN  (N,)
    left: Any,  # IN  (movers,) places in `order` that were left, ascending
    old: Any,  # IN  (movers,) the groups of those places
    arrivals: Any,  # IN  (movers,) the same places, by the new group of who was there
    new: Any,  # IN  (movers,) those groups, ascending
    new_starts: Any,  # OUT (C + 1,)
    new_order: Any,  # OUT (N,)
) -> None:
    """Each group again: who stayed, then who arrived. O(rows)."""
    t = take_number(queue)
    while t < tasks.shape[0] - 1:
        join_some(starts, order, left, old, arrivals, new, tasks[t], tasks[t + 1], new_starts, new_order)
        t = take_number(queue)


@inline
def join_some(
    starts: Any, order: Any, left: Any, old: Any, arrivals: Any, new: Any, first: int, last: int, new_starts: Any,
    new_order: Any,
) -> None:  # fmt: skip
    """The groups first … last − 1; the last of all has the end of all written too. O(rows)."""
    n_left, n_arrived = count_up_to(left, starts[first] - 1), count_up_to(new, first - 1)
    n_movers = left.shape[0]
    c = first
    while c < last:
        # groups that nobody left or joined move as one
        changed = min(last, old[n_left]) if n_left < n_movers else last
        changed = min(changed, new[n_arrived]) if n_arrived < n_movers else changed
        shift = n_arrived - n_left
        for g in range(c, changed):
            new_starts[g] = starts[g] + shift
        copy_stretch(order, starts[c], starts[changed], new_order, starts[c] + shift)
        c = changed
        if c == last:
            break
        new_starts[c] = starts[c] + shift
        k, to = starts[c], starts[c] + shift
        while n_left < n_movers and old[n_left] == c:
            copy_stretch(order, k, left[n_left], new_order, to)
            to += left[n_left] - k
            k = left[n_left] + 1
            n_left += 1
        copy_stretch(order, k, starts[c + 1], new_order, to)
        to += starts[c + 1] - k
        while n_arrived < n_movers and new[n_arrived] == c:
            new_order[to] = order[arrivals[n_arrived]]
            to += 1
            n_arrived += 1
        c += 1
    if last == starts.shape[0] - 1:
        new_starts[last] = starts[last]


@kernel
def pack(
    queue: Queue,  # IN/OUT stretches
    begins: Any,  # IN  (T,) where each stretch lies
    sizes: Any,  # IN  (T,) how long it is
    to: Any,  # IN  (T,) where it goes
    scattered: Any,  # IN  (m, ·)
    out: Any,  # OUT (m, ·)
) -> None:
    """Copy stretches of an array. O(m · Σ sizes)."""
    s = take_number(queue)
    while s < begins.shape[0]:
        for a in range(out.shape[0]):
            for k in range(sizes[s]):
                out[a, to[s] + k] = scattered[a, begins[s] + k]
        s = take_number(queue)


@inline
def copy_stretch(order: Any, begin: int, end: int, new_order: Any, to: int) -> None:
    """O(end − begin)."""
    for i in range(end - begin):
        new_order[to + i] = order[begin + i]


@dataclass(slots=True)
class Grouping:
    """All rows of a shard by their label; within a group those that came last are last."""

    labels: NDArray[np.int32]
    """The labels that it goes with, (N,)."""
    starts: NDArray[np.int64]
    """Group g is order[starts[g]:starts[g + 1]], (C + 1,)."""
    order: NDArray[np.integer]
    """Row numbers, (N,)."""
    spare: NDArray[np.integer] | None = None
    """Memory for the next `order`: fresh memory would cost as much as the regrouping."""

    def tasks(self, n_rows: int) -> NDArray[np.int64]:
        """Ranges of groups with about `n_rows` rows each: one ends where the next begins. Threads play no part."""
        begins = np.searchsorted(self.starts[:-1], np.arange(0, self.starts[-1], n_rows))
        bounds = np.concatenate([[0], begins, [len(self.starts) - 1]])
        return bounds[np.diff(bounds, prepend=-1) > 0]  # ascending already: `unique` would sort them


def cut_groups(starts: NDArray[np.int64], n_rows: int) -> Iterator[tuple[int, int]]:
    """Ranges of groups with about `n_rows` rows each."""
    n_groups = len(starts) - 1
    first = 0
    while first < n_groups:
        last = int(np.searchsorted(starts, starts[first] + n_rows, side="right")) - 1
        last = min(max(last, first + 1), n_groups)
        yield first, last
        first = last


def group_rows(shard: CpuShard, n_clusters: int) -> Grouping:
    """Group by `shard.labels`: as the last pass has left them, or anew if somebody has changed labels since. O(N).

    The shard gives the groups away, and gets them back at the end of the pass: one that Ctrl-C ends half-way, with
    labels that have changed and groups that have not, leaves none.
    """
    held = shard.recall(Grouping)
    shard.forget(Grouping)
    if held is None or len(held.starts) != n_clusters + 1 or not np.array_equal(held.labels, shard.labels):
        starts, order = group_by(shard.labels, n_clusters, shard.n_threads)
        held = Grouping(shard.labels.copy(), starts, order)
    return held


def move_rows(shard: CpuShard, held: Grouping, moved: NDArray[np.integer]) -> NDArray[np.integer]:
    """Bring the groups up to date; returns the numbers of the rows that moved. O(N), from front to back.

    `moved` holds their places in the groups, ascending, and the clusters that they have left and joined; all labels are
    new already.
    """
    (left, old, new), starts, order = moved, held.starts, held.order
    numbers = order.take(left)
    if len(left) == 0:
        return numbers
    # a look at every group costs more than sorting few rows
    few = len(new) * 8 < len(starts)
    by_group = np.argsort(new, kind="stable") if few else group_by(new, len(starts) - 1, shard.n_threads)[1]
    arrivals, new = left.take(by_group), new.take(by_group)
    new_starts = np.empty_like(starts)
    new_order = np.empty_like(order) if held.spare is None else held.spare
    queue, tasks = new_queue(), held.tasks(ROWS_PER_TASK)
    share_kernel(
        lambda: join_groups(queue, tasks, starts, order, left, old, arrivals, new, new_starts, new_order),
        queue, worth_waking(shard.n_threads, SECONDS_PER_NUMBER * 3 * order.size), calls_blas=False,
    )  # fmt: skip
    held.starts, held.order, held.spare = new_starts, new_order, order
    return numbers


def packed(
    scattered: NDArray[Any], begins: NDArray[np.int64], sizes: NDArray[np.int64], n_threads: int
) -> NDArray[Any]:
    """Stretches of an array (m, ·), one after the other: what the tasks of a pass have found. O(members)."""
    to, queue = np.cumsum(sizes) - sizes, new_queue()
    found = np.empty((len(scattered), int(sizes.sum())), dtype=scattered.dtype)
    threads = worth_waking(n_threads, SECONDS_PER_NUMBER * found.shape[1])
    share_kernel(
        lambda: pack(queue, begins, sizes, to, scattered, found), queue, threads, calls_blas=False
    )  # fmt: skip
    return found
