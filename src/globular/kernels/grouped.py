"""Rows in groups by their label: a counting sort on several threads, and groups kept up to date.

Few rows change their cluster in a pass, so to bring groups up to date the old order is mostly copied from front to
back; a sort from scratch would write all over memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import inline, kernel
from globular.kernels.queue import take_number


@inline
def span_of(n: int, n_spans: int, s: int) -> tuple[int, int]:
    """Where span s of n members begins and ends."""
    return n * s // n_spans, n * (s + 1) // n_spans


@kernel
def count_labels(
    queue: Any,  # IN/OUT spans
    labels: Any,  # IN  (n,)
    counts: Any,  # OUT (spans, C) members of each group in each span
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
    counts: Any,  # IN/OUT (spans, C) in: members of each group in each span; out: where they begin
    starts: Any,  # OUT (C + 1,) where each group begins
) -> None:
    """The second third: groups one after the other, in each the spans. O(spans · C)."""
    total = 0
    for c in range(counts.shape[1]):
        starts[c] = total
        for s in range(counts.shape[0]):
            n = counts[s, c]
            counts[s, c] = total
            total += n
    starts[counts.shape[1]] = total


@kernel
def place_members(
    queue: Any,  # IN/OUT spans
    labels: Any,  # IN  (n,)
    ends: Any,  # IN/OUT (spans, C) where the next member of each group in each span goes
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


@kernel
def join_groups(
    starts: Any,  # IN  (C + 1,) where each group began
    members: Any,  # IN  (m, N)
    left: Any,  # IN  (movers,) places in `members` that were left, ascending
    old: Any,  # IN  (movers,) the groups of those places
    arrivals: Any,  # IN  (m, movers) who moved, by their new group
    new: Any,  # IN  (movers,) those groups, ascending
    first: int,  # IN  this call handles the groups first … last − 1
    last: int,  # IN
    new_starts: Any,  # OUT (C + 1,); the last call writes the end of all
    new_members: Any,  # OUT (m, N)
) -> None:
    """Each group again: who stayed, then who arrived. O(rows)."""
    n_left, n_arrived = np.searchsorted(left, starts[first]), np.searchsorted(new, first)
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
                new_members[a, to] = arrivals[a, n_arrived]
            to += 1
            n_arrived += 1
        c += 1
    if last == starts.shape[0] - 1:
        new_starts[last] = starts[last]


@inline
def copy_members(members: Any, begin: int, end: int, new_members: Any, to: int) -> None:
    """O(members)."""
    for a in range(members.shape[0]):
        for i in range(end - begin):
            new_members[a, to + i] = members[a, begin + i]
