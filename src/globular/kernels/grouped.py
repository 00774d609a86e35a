"""Rows in groups by their label, kept up to date: groups again without who left, with who arrived.

Few rows change their cluster in a pass, so the old order is mostly copied from front to back; a sort from scratch would
write all over memory.
"""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import kernel


@kernel
def join_groups(
    starts: Any,  # IN  (C + 1,) where each group began
    members: Any,  # IN  (m, N)
    left_starts: Any,  # IN  (C + 1,) where each group's leavers begin
    left: Any,  # IN  (movers,) their places in `members`, ascending
    arrival_starts: Any,  # IN  (C + 1,) where each group's arrivals begin
    arrivals: Any,  # IN  (m, movers) by their new group
    new_starts: Any,  # IN  (C + 1,)
    first: int,  # IN  this call handles the groups first … last − 1
    last: int,  # IN
    new_members: Any,  # OUT (m, N)
) -> None:
    """Each group again: who stayed, then who arrived. O(rows)."""
    for a in range(members.shape[0]):
        c = first
        while c < last:
            same = c  # groups that nobody left or joined move as one
            while (
                same < last
                and left_starts[same] == left_starts[same + 1]
                and arrival_starts[same] == arrival_starts[same + 1]
            ):
                same += 1
            to, k = new_starts[c], starts[c]
            for i in range(starts[same] - k):
                new_members[a, to + i] = members[a, k + i]
            if same == last:
                break
            c = same
            to, k = new_starts[c], starts[c]
            for q in range(left_starts[c], left_starts[c + 1] + 1):
                end = left[q] if q < left_starts[c + 1] else starts[c + 1]
                for i in range(end - k):
                    new_members[a, to + i] = members[a, k + i]
                to += end - k
                k = end + 1
            for q in range(arrival_starts[c], arrival_starts[c + 1]):
                new_members[a, to] = arrivals[a, q]
                to += 1
            c += 1
