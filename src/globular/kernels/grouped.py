"""Rows in groups by their label: a counting sort, also on several threads, and groups kept up to date.

Few rows change their cluster in a pass, so to bring groups up to date the old order is mostly copied from front to
back; a sort from scratch would write all over memory.
"""

from __future__ import annotations

from typing import Any

from globular.jit import Queue, inline, kernel, take_number
from globular.kernels.ascending import count_up_to


@kernel
def group_by_label(
    labels: Any,  # IN  (n,)
    starts: Any,  # OUT (C + 1,) where each cluster's rows begin in `order`
    order: Any,  # OUT (n,) rows sorted by label, ascending within a cluster
) -> None:
    """Counting sort of the rows by their label. O(n + C)."""
    starts[:] = 0
    n_clusters = starts.shape[0] - 1
    for label in labels:
        starts[label + 1] += 1
    for c in range(n_clusters):
        starts[c + 1] += starts[c]
    for i in range(labels.shape[0]):
        c = labels[i]
        order[starts[c]] = i
        starts[c] += 1
    for c in range(n_clusters, 0, -1):
        starts[c] = starts[c - 1]
    starts[0] = 0


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


@kernel
def look_up(
    queue: Queue,  # IN/OUT stretches
    length: int,  # IN  places of a stretch
    values: Any,  # IN  (m,)
    places: Any,  # IN  (n,)
    out: Any,  # OUT (n,)
) -> None:
    """out = values[places]. O(n)."""
    begin = length * take_number(queue)
    while begin < places.shape[0]:
        for i in range(begin, min(begin + length, places.shape[0])):
            out[i] = values[places[i]]
        begin = length * take_number(queue)


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
