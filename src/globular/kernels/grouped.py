"""Rows in groups by their label, kept up to date: who left a group, and groups again with who arrived.

Few rows change their cluster between two passes, so the old order is walked from front to back and mostly copied; a
sort from scratch would write all over memory.
"""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import kernel


@kernel
def part_movers(
    labels: Any,  # IN  (N,)
    starts: Any,  # IN  (C + 1,) where each group begins
    first: int,  # IN  this call handles the groups first … last − 1
    last: int,  # IN
    members: Any,  # IN and OUT (m, N) by group, row numbers first: those that stay move to the front of their group
    n_stayed: Any,  # OUT (C,)
    movers: Any,  # OUT (m, rows of these groups): members that have another label now
) -> int:
    """Take those out of their group whose label is another one by now; returns their number. O(rows)."""
    n_movers = 0
    for c in range(first, last):
        n_left = 0
        for k in range(starts[c], starts[c + 1]):
            n_left += labels[members[0, k]] != c
        n_stayed[c] = starts[c + 1] - starts[c] - n_left
        if n_left == 0:
            continue
        end = starts[c]
        for k in range(starts[c], starts[c + 1]):
            if labels[members[0, k]] == c:
                for a in range(members.shape[0]):
                    members[a, end] = members[a, k]
                end += 1
            else:
                for a in range(members.shape[0]):
                    movers[a, n_movers] = members[a, k]
                n_movers += 1
    return n_movers


@kernel
def join_groups(
    starts: Any,  # IN  (C + 1,) where each group began
    n_stayed: Any,  # IN  (C,)
    members: Any,  # IN  (m, N)
    arrival_starts: Any,  # IN  (C + 1,) where each group's arrivals begin
    arrivals: Any,  # IN  (m, movers) by their new group
    new_starts: Any,  # IN  (C + 1,)
    first: int,  # IN  this call handles the groups first … last − 1
    last: int,  # IN
    new_members: Any,  # OUT (m, N)
) -> None:
    """Groups again: who stayed, then who arrived. O(rows)."""
    for c in range(first, last):
        for a in range(members.shape[0]):
            at = new_starts[c]
            for k in range(n_stayed[c]):
                new_members[a, at + k] = members[a, starts[c] + k]
            at += n_stayed[c]
            for k in range(arrival_starts[c], arrival_starts[c + 1]):
                new_members[a, at + k - arrival_starts[c]] = arrivals[a, k]
