"""Rows in groups by their cluster: where each group begins, and where its rows lie.

Groups stay with the shard; the next pass moves only the rows whose label has changed. Rows of a cluster lie anywhere in
X, and fetching them one by one takes as long as all the arithmetic of a truncated E-step. Once few rows change their
cluster any more, the rows are copied together in cluster order, up to `SORT_UP_TO` bytes of them; the passes then read
memory almost from front to back. Row numbers, and with them labels, weights and random candidates, stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, inline, kernel, new_queue, share_kernel, take_number
from globular.model.statistics import Floats
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.rows import CSRRows, KernelRows, read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import ROWS_AT_ONCE
from globular.passes.limits import SORT_UP_TO
from globular.threads import SECONDS_PER_NUMBER, even_ranges, run_all, worth_waking

SETTLED = 8
"""Rows are sorted by cluster once at most one in 8 of them changes its cluster in a pass."""
STALE = 4
"""Sorted rows are sorted again when one in 4 of them has changed its cluster since."""
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
    members: Any,  # IN  (m, N)
    left: Any,  # IN  (movers,) places in `members` that were left, ascending
    old: Any,  # IN  (movers,) the groups of those places
    arrivals: Any,  # IN  (movers,) the same places, by the new group of who was there
    new: Any,  # IN  (movers,) those groups, ascending
    new_starts: Any,  # OUT (C + 1,)
    new_members: Any,  # OUT (m, N)
) -> None:
    """Each group again: who stayed, then who arrived. O(rows)."""
    t = take_number(queue)
    while t < tasks.shape[0] - 1:
        join_some(starts, members, left, old, arrivals, new, tasks[t], tasks[t + 1], new_starts, new_members)
        t = take_number(queue)


@inline
def join_some(
    starts: Any, members: Any, left: Any, old: Any, arrivals: Any, new: Any, first: int, last: int, new_starts: Any,
    new_members: Any,
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
        copy_members(members, starts[c], starts[changed], new_members, starts[c] + shift)
        c = changed
        if c == last:
            break
        new_starts[c] = starts[c] + shift
        k, to = starts[c], starts[c] + shift
        while n_left < n_movers and old[n_left] == c:
            copy_members(members, k, left[n_left], new_members, to)
            to += left[n_left] - k
            k = left[n_left] + 1
            n_left += 1
        copy_members(members, k, starts[c + 1], new_members, to)
        to += starts[c + 1] - k
        while n_arrived < n_movers and new[n_arrived] == c:
            for a in range(members.shape[0]):
                new_members[a, to] = members[a, arrivals[n_arrived]]
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
def copy_members(members: Any, begin: int, end: int, new_members: Any, to: int) -> None:
    """O(members)."""
    for a in range(members.shape[0]):
        for i in range(end - begin):
            new_members[a, to + i] = members[a, begin + i]


@dataclass(slots=True)
class SortedRows:
    """A copy of the rows in the order of their clusters."""

    array: Floats
    n_moved: int = 0
    """Changes of cluster since."""


@dataclass(slots=True)
class Grouping:
    """All rows of a shard by their label; within a group those that came last are last."""

    labels: NDArray[np.int32]
    """The labels that it goes with, (N,)."""
    starts: NDArray[np.int64]
    """Group g is order[starts[g]:starts[g + 1]], (C + 1,)."""
    members: NDArray[np.integer]
    """(1 or 2, N): row numbers, and the rows' places in the sorted copy if there is one."""
    spare: NDArray[np.integer] | None = None
    """Memory for the next `members`: fresh memory would cost as much as the regrouping."""
    copied: SortedRows | None = None
    n_passes: int = 0

    @property
    def order(self) -> NDArray[np.integer]:
        """Row numbers."""
        return self.members[0]

    def lying(self) -> tuple[KernelRows, NDArray[np.integer]] | None:
        """The sorted copy of the rows, and where they lie in it, if there is one."""
        return None if self.copied is None else ((read_only(self.copied.array),), self.members[-1])

    def tasks(self, n_rows: int) -> NDArray[np.int64]:
        """Ranges of groups with about so many rows each: one ends where the next begins. Threads play no part."""
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
        held = Grouping(shard.labels.copy(), starts, order[None])
    return held


def move_rows(shard: CpuShard, held: Grouping, moved: NDArray[np.integer]) -> NDArray[np.integer]:
    """Bring the groups up to date; returns the numbers of the rows that moved. O(N), from front to back.

    `moved` holds their places in the groups, ascending, and the clusters that they have left and joined; all labels are
    new already.
    """
    (left, old, new), starts, members = moved, held.starts, held.members
    numbers = members[0].take(left)
    if len(left) == 0:
        return numbers
    # a look at every group costs more than sorting few rows
    few = len(new) * 8 < len(starts)
    order = np.argsort(new, kind="stable") if few else group_by(new, len(starts) - 1, shard.n_threads)[1]
    arrivals, new = left.take(order), new.take(order)
    new_starts = np.empty_like(starts)
    new_members = np.empty_like(members) if held.spare is None else held.spare
    queue, tasks = new_queue(), held.tasks(ROWS_PER_TASK)
    share_kernel(
        lambda: join_groups(
            queue, tasks, starts, members, left, old, arrivals, new, new_starts, new_members
        ),
        queue, worth_waking(shard.n_threads, SECONDS_PER_NUMBER * 3 * members.size), calls_blas=False,
    )  # fmt: skip
    held.starts, held.members, held.spare = new_starts, new_members, members
    return numbers


def sort_when_it_pays(shard: CpuShard, held: Grouping, n_moved: int) -> None:
    """Copy the rows together by cluster if they have settled, or anew if the copy is no longer in order.

    Not in a first pass: there may be no second one.
    """
    rows = shard.rows
    held.n_passes += 1
    if isinstance(rows, CSRRows) or not rows.is_direct():
        return
    copied = held.copied
    if copied is not None:
        copied.n_moved += n_moved
    stale = copied is not None and copied.n_moved * STALE > shard.n_rows
    fits = rows.dtype.itemsize * shard.n_columns * shard.n_rows <= SORT_UP_TO
    if held.n_passes == 1 or not fits or n_moved * SETTLED > shard.n_rows or (copied is not None and not stale):
        return
    order = held.order.copy()
    array: Floats = np.empty((shard.n_rows, shard.n_columns), dtype=rows.dtype) if copied is None else copied.array

    def copy(span: tuple[int, int]) -> None:
        np.take(rows.array, order[slice(*span)], axis=0, out=array[slice(*span)], mode="clip")

    run_all(copy, even_ranges(shard.n_rows, ROWS_AT_ONCE), shard.n_threads)
    held.members = np.stack([order, np.arange(shard.n_rows, dtype=order.dtype)])
    held.copied, held.spare = SortedRows(array), None


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
