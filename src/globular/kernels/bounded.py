"""Yinyang bounds: rows skip the groups of centres that cannot hold a closer one.

Per row and group of centres a lower bound on the distance to every centre of the group but the row's own. The distance
to the own centre is computed afresh in every pass (the objective needs it), so there is no upper bound to keep. A group
is searched unless its bound exceeds that distance; ties are searched too, so labels come out as without bounds.
Bounds are float32, always rounded down.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import kernel
from globular.kernels.nearest import score_slack, scores_may_overflow
from globular.kernels.rows import squared_distance

ROUND_DOWN = 1.0 - 2.0**-22
SMALLEST, LARGEST = 2.0**-126, 2.0**127  # between these, float32 rounds with a relative error


@kernel
def bound_below(value: float) -> Any:
    """A float32 that is not above the value; 0 for a positive one that float32 cannot hold."""
    if value < SMALLEST:
        return np.float32(min(value, 0.0) / ROUND_DOWN)
    return np.float32(min(value, LARGEST) * ROUND_DOWN)


@kernel
def loosen_and_select(
    lower: Any,  # IN/OUT (n, groups) bounds, loosened by the groups' shifts
    group_shifts: Any,  # IN  (groups,) how far the farthest-moving centre of each group went
    best: Any,  # IN  (n,) squared distance to the own centre
    active: Any,  # OUT (n,) rows with at least one group to search
) -> int:
    """Loosen the bounds by the shifts; return how many rows have a group to search. O(n · groups)."""
    n, n_groups = lower.shape
    n_active = 0
    for i in range(n):
        distance = np.sqrt(best[i])
        found = False
        for g in range(n_groups):
            lower[i, g] = bound_below(lower[i, g] - group_shifts[g])
            found |= lower[i, g] <= distance
        if found:
            active[n_active] = i
            n_active += 1
    return n_active


@kernel
def select_rows(
    lower: Any,  # IN  (n, groups)
    group: int,  # IN
    best: Any,  # IN  (n,)
    active: Any,  # IN  rows to look at
    chosen: Any,  # OUT rows whose bound for this group does not rule it out
) -> int:
    """Rows that must search a group. O(active)."""
    n_chosen = 0
    for i in active:
        if lower[i, group] <= np.sqrt(best[i]):
            chosen[n_chosen] = i
            n_chosen += 1
    return n_chosen


@kernel
def search_group(
    rows: Any,  # IN  a block of rows
    chosen: Any,  # IN  (m,) rows of the block to be searched
    lengths: Any,  # IN  (n,) ‖x − offset‖
    scales: Any,  # IN  (n,) or empty
    scores: Any,  # IN  (m, |group|) −2 x·(m − offset)
    score_norms: Any,  # IN  (|group|,) ‖m − offset‖²
    members: Any,  # IN  (|group|,) the group's centres, ascending
    longest: float,  # IN  the largest ‖m − offset‖ of the group
    group: int,  # IN  the group's number
    group_of: Any,  # IN  (C,) group of every centre
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) float64
    unit: float,  # IN  unit round-off of the scores
    tiny: float,  # IN  their smallest normal number
    best: Any,  # IN/OUT (n,) squared distance to the closest centre so far
    labels: Any,  # IN/OUT (n,)
    lower: Any,  # IN/OUT (n, groups)
) -> None:
    """Exact search of one group and its new bounds. O(m · |group|)."""
    for k in range(chosen.shape[0]):
        i = chosen[k]
        scale = scales[i] if scales.shape[0] else 1.0
        length = scale * lengths[i]
        # the rounding error of any score of this group; scores that may have overflowed say nothing at all
        slack = score_slack(length, length + longest, scale, centers.shape[1], unit, tiny)
        useless = scores_may_overflow(length + longest, scale, tiny)
        for position in range(members.shape[0]):
            c = members[position]
            approximate = score_norms[position] + scale * scores[k, position] + length * length
            if c == labels[i] or (approximate - slack > best[i] and not useless):
                continue
            distance = squared_distance(rows, i, scale, centers, c, norms)
            if distance < best[i] or (distance == best[i] and c < labels[i]):
                if labels[i] >= 0:  # the former centre is now one of the others of its group
                    former = group_of[labels[i]]
                    lower[i, former] = min(lower[i, former], bound_below(np.sqrt(best[i])))
                best[i] = distance
                labels[i] = c
        nearest_other = 0.0 if useless else np.inf
        for position in range(0 if useless else members.shape[0]):
            if members[position] != labels[i]:
                approximate = score_norms[position] + scale * scores[k, position] + length * length
                nearest_other = min(nearest_other, approximate - slack)
        lower[i, group] = bound_below(np.sqrt(max(nearest_other, 0.0)))
