"""Yinyang bounds: rows skip the groups of centres that cannot hold a closer one.

Per row and group of centres a lower bound on the distance to every centre of the group but the row's own. The distance
to the own centre is computed afresh in every pass (the objective needs it), so there is no upper bound to keep. A group
is searched unless its bound exceeds that distance; ties are searched too, so labels come out as without bounds.
Bounds are float32, always rounded down.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, Scratch, kernel, take_number
from globular.jit.views import as_matrix
from globular.kernels.cells import block_size, score_block
from globular.kernels.nearest import score_slack, scores_may_overflow, settle_block, thin_scores
from globular.kernels.rows import squared_distance
from globular.kernels.scores import copy_row

ROUND_DOWN = 1.0 - 2.0**-22
SAME = 2.0**-48
SMALLEST, LARGEST = 2.0**-126, 2.0**127  # between these, float32 rounds with a relative error


@kernel
def bound_below(value: float) -> Any:
    """A float32 that is not above the value; 0 for a positive one that float32 cannot hold."""
    if value < SMALLEST:
        return np.float32(min(value, 0.0) / ROUND_DOWN)
    return np.float32(min(value, LARGEST) * ROUND_DOWN)


@kernel
def begin_block(
    rows: Any,  # IN
    scales: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,)
    begin: int,  # IN  rows begin … end − 1
    end: int,  # IN
    group_shifts: Any,  # IN  (groups,) how far the farthest-moving centre of each group went
    labels: Any,  # IN  (N,) −1: none yet
    lower: Any,  # IN/OUT (N, groups) bounds, loosened by the shifts
    best: Any,  # OUT (end − begin,) squared distance to the own centre
    found: Any,  # OUT (end − begin,) the labels
    active: Any,  # OUT (end − begin,) rows with at least one group to search
) -> int:
    """Measure the own centres and loosen the bounds; how many rows have a group to search. O(rows · (D + groups))."""
    n_active = 0
    for i in range(begin, end):
        found[i - begin] = labels[i]
        best[i - begin] = np.inf
        if labels[i] >= 0:
            scale = scales[i] if scales.shape[0] else 1.0
            best[i - begin] = squared_distance(rows, i, scale, centers, labels[i], norms)
        distance = np.sqrt(best[i - begin])
        is_open = False
        for g in range(lower.shape[1]):
            lower[i, g] = bound_below(lower[i, g] - group_shifts[g])
            is_open |= lower[i, g] <= distance
        if is_open:
            active[n_active] = i
            n_active += 1
    return n_active


@kernel
def select_rows(
    lower: Any,  # IN  (N, groups)
    group: int,  # IN
    begin: int,  # IN  the row of best[0]
    best: Any,  # IN  (n,)
    active: Any,  # IN  rows to look at
    chosen: Any,  # OUT rows whose bound for this group does not rule it out
) -> int:
    """Rows that must search a group. O(active)."""
    n_chosen = 0
    for i in active:
        if lower[i, group] <= np.sqrt(best[i - begin]):
            chosen[n_chosen] = i
            n_chosen += 1
    return n_chosen


@kernel
def rounds_alike(one: float, other: float) -> bool:
    """Whether two squared distances may be the same but for the order in which a compiler has added squares up."""
    return abs(one - other) <= SAME * other < np.inf


@kernel
def lie_together(centers: Any, one: int, other: int) -> bool:
    """Whether two centres are at the same place. O(D)"""
    n_equal = 0
    for j in range(centers.shape[1]):
        n_equal += centers[one, j] == centers[other, j]
    return n_equal == centers.shape[1]


@kernel
def search_group(
    rows: Any,  # IN
    chosen: Any,  # IN  (m,) rows to be searched
    begin: int,  # IN  the row of best[0] and labels[0]
    lengths: Any,  # IN  (m,) ‖x − offset‖
    scales: Any,  # IN  (N,) or empty
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
    lower: Any,  # IN/OUT (N, groups)
) -> None:
    """Exact search of one group and its new bounds. O(m · |group|)."""
    for k in range(chosen.shape[0]):
        i, b = chosen[k], chosen[k] - begin
        scale = scales[i] if scales.shape[0] else 1.0
        length = scale * lengths[k]
        # the rounding error of any score of this group; scores that may have overflowed say nothing at all
        slack = score_slack(length, length + longest, scale, centers.shape[1], unit, tiny)
        useless = scores_may_overflow(length + longest, scale, tiny)
        for position in range(members.shape[0]):
            c = members[position]
            approximate = score_norms[position] + scale * scores[k, position] + length * length
            if c == labels[b] or (approximate - slack > best[b] and not useless):
                continue
            distance = squared_distance(rows, i, scale, centers, c, norms)
            if rounds_alike(distance, best[b]) and lie_together(centers, c, labels[b]):
                is_closer = c < labels[b]
            else:
                is_closer = distance < best[b] or (distance == best[b] and c < labels[b])
            if is_closer:
                if labels[b] >= 0:  # the former centre is now one of the others of its group
                    former = group_of[labels[b]]
                    lower[i, former] = min(lower[i, former], bound_below(np.sqrt(best[b])))
                best[b] = distance
                labels[b] = c
        nearest_other = 0.0 if useless else np.inf
        for position in range(0 if useless else members.shape[0]):
            if members[position] != labels[b]:
                approximate = score_norms[position] + scale * scores[k, position] + length * length
                nearest_other = min(nearest_other, approximate - slack)
        lower[i, group] = bound_below(np.sqrt(max(nearest_other, 0.0)))


@kernel
def score_some(
    rows: Any,  # IN
    chosen: Any,  # IN  (m,) rows to multiply
    offset: Any,  # IN  (D,) or empty
    factors: Any,  # IN  see `assign_bounded`
    is_thin: bool,  # IN
    first: int,  # IN  centres first … stop − 1
    stop: int,  # IN
    seen: Any,  # scratch (≥ m, D)
    scores: Any,  # OUT (m, stop − first)
    lengths: Any,  # OUT (≥ m,) ‖x − offset‖
) -> None:
    """Scores of some rows with the centres of a group. O(m · D) a centre."""
    if len(rows) == 1:  # noqa: SIM102  (the outer one is decided when the kernel is compiled)
        if is_thin:
            for k in range(chosen.shape[0]):
                lengths[k] = np.sqrt(copy_row(rows[0], chosen[k], offset, seen, k))
            thin_scores(seen[: chosen.shape[0]], factors[:, first:stop], scores)
            return
    score_block(rows, chosen, offset, factors, first, seen, scores, lengths)


@kernel
def assign_bounded(
    queue: Queue,  # IN/OUT blocks
    size: int,  # IN  rows of a block
    rows: Any,  # IN
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) or empty
    starts: Any,  # IN  (groups + 1,)
    members: Any,  # IN  (C,) centres in the order of their groups
    group_of: Any,  # IN  (C,)
    factors: Any,  # IN  −2 (m − offset) in that order: (C, D) for dense rows of many columns, else (D, C)
    is_thin: bool,  # IN  whether rows are dense and of few columns
    score_norms: Any,  # IN  (C,) in that order
    longest: Any,  # IN  (groups,)
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,)
    unit: float,  # IN
    tiny: float,  # IN
    group_shifts: Any,  # IN  (groups,)
    labels: Any,  # IN/OUT (N,)
    lower: Any,  # IN/OUT (N, groups)
    objectives: Any,  # OUT (blocks,) Σ w d²
    numbers: Any,  # OUT (blocks, 2) labels that changed, and distances but those to own centres
    seen: Scratch,  # scratch (B, D)
    scores: Scratch,  # scratch, no less than the largest group
    lengths: Scratch,  # scratch (B,)
    best: Scratch,  # scratch (size,)
    found: Scratch,  # scratch (size,) int32
    active: Scratch,  # scratch (2, size) int64
) -> None:
    """Every row against the groups of centres that its bounds do not rule out."""
    block = take_number(queue)
    while block < objectives.shape[0]:
        begin, end = block * size, min((block + 1) * size, labels.shape[0])
        n_active = begin_block(
            rows, scales, centers, norms, begin, end, group_shifts, labels, lower, best, found, active[0]
        )
        n_distances = 0
        for g in range(starts.shape[0] - 1):
            first, stop = starts[g], starts[g + 1]
            n_chosen = select_rows(lower, g, begin, best, active[0, :n_active], active[1])
            n_distances += n_chosen * (stop - first)
            B = block_size(scores, stop - first, lengths.shape[0])
            for at in range(0, n_chosen, B):
                chosen = active[1, at : min(at + B, n_chosen)]
                m = chosen.shape[0]
                part = as_matrix(scores, m, stop - first)
                score_some(rows, chosen, offset, factors, is_thin, first, stop, seen, part, lengths)
                search_group(
                    rows, chosen, begin, lengths, scales, part, score_norms[first:stop], members[first:stop],
                    longest[g], g, group_of, centers, norms, unit, tiny, best, found, lower,
                )  # fmt: skip
        some = weights[begin:end] if weights.shape[0] else weights
        objective, n_changed = settle_block(best[: end - begin], found, some, labels[begin:end])
        objectives[block], numbers[block, 0], numbers[block, 1] = objective, n_changed, n_distances
        block = take_number(queue)
