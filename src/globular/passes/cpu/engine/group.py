"""Rows, or other things, by their label: a counting sort on all threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, inline, kernel, new_queue, share_kernel, take_number
from globular.threads import SECONDS_PER_LOOK, worth_waking

SORTED_ALONE = 40_000
"""Members up to which one thread sorts sooner."""
APART = 32
"""Numbers between what two spans count: threads that count into one line of the cache wait for each other."""


@inline
def span_of(n: int, n_spans: int, s: int) -> tuple[int, int]:
    """Where span s of n members begins and ends."""
    return n * s // n_spans, n * (s + 1) // n_spans


@kernel
def count_labels(
    queue: Queue,  # IN/OUT spans
    labels: Any,  # IN  (n,)
    counts: Any,  # OUT (spans, ≥ C) members of each group in each span
) -> None:
    """The first third of a counting sort, a span of the members at a time. O(n + spans · C)."""
    s = take_number(queue)
    while s < counts.shape[0]:
        begin, end = span_of(labels.shape[0], counts.shape[0], s)
        for c in range(counts.shape[1]):
            counts[s, c] = 0
        for i in range(begin, end):
            counts[s, labels[i]] += 1
        s = take_number(queue)


@kernel
def running_starts(
    counts: Any,  # IN/OUT (spans, ≥ C) in: members of each group in each span; out: where they begin
    starts: Any,  # OUT (C + 1,) where each group begins
) -> None:
    """The second third: groups one after the other, in each the spans. O(spans · C)."""
    total = 0
    for c in range(starts.shape[0] - 1):
        starts[c] = total
        for s in range(counts.shape[0]):
            n = counts[s, c]
            counts[s, c] = total
            total += n
    starts[starts.shape[0] - 1] = total


@kernel
def place_members(
    queue: Queue,  # IN/OUT spans
    labels: Any,  # IN  (n,)
    ends: Any,  # IN/OUT (spans, ≥ C) where the next member of each group in each span goes
    order: Any,  # OUT (n,) members by group, ascending within a group
) -> None:
    """The last third. O(n)."""
    s = take_number(queue)
    while s < ends.shape[0]:
        begin, end = span_of(labels.shape[0], ends.shape[0], s)
        for i in range(begin, end):
            at = ends[s, labels[i]]
            order[at] = i
            ends[s, labels[i]] = at + 1
        s = take_number(queue)


def group_by(
    labels: NDArray[np.int32], n_groups: int, n_threads: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """(starts, order): the members of group g are order[starts[g]:starts[g + 1]], ascending. O(members + groups)."""
    n = len(labels)
    starts = np.empty(n_groups + 1, dtype=np.int64)
    order: NDArray[np.integer] = np.empty(n, dtype=np.int32 if n < 2**31 else np.int64)
    n_spans = min(worth_waking(n_threads, SECONDS_PER_LOOK * n), n // max(1, 4 * n_groups))
    n_spans = 1 if n <= SORTED_ALONE else max(1, n_spans)
    ends = np.empty((n_spans, n_groups + APART), dtype=order.dtype)
    queues = new_queue(), new_queue()
    share_kernel(lambda: count_labels(queues[0], labels, ends), queues[0], n_spans, calls_blas=False)
    running_starts(ends, starts)
    share_kernel(lambda: place_members(queues[1], labels, ends, order), queues[1], n_spans, calls_blas=False)
    return starts, order
