"""Nested mini-batches: bounds that settled rows pass without being read.

Of every row of the batch we keep an upper bound on the distance to its own centre, and per group of centres a
lower bound on the distance to every centre of the group but its own; with groups of one centre these are Elkan's, with
larger ones yinyang's. Bounds are not loosened in every pass. They are kept relative to the *drift*, the length of the
path that a centre has gone since the start (for a group: the sum of its largest steps), so that one subtraction brings
them up to date, and a row whose bounds settle it costs no look at the row itself.

Bounds are float32, rounded to the safe side by far more than float64 rounds, so they rule out a centre only if its
computed distance is the larger one too: labels come out the same with bounds and without. Sparse distances cancel, so
there the bounds give way by that error as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import inline, kernel
from globular.kernels.nearest import scores_may_overflow
from globular.kernels.rows import fetch, quick_distance, quick_distances, squared_distance
from globular.kernels.scores import rounding

SAFETY = 2.0**-22
TINY, LARGEST = 2.0**-126, 2.0**127  # within these, float32 rounds with a relative error below the safety
AHEAD = 4
"""How many rows before its turn one is asked for: most need no more than their own distance, which is soon done."""
LEAST_SCALE = 2.0**-100  # scales between this and its inverse keep their precision in float32


@inline
def stored_lower(bound: float, drift: float) -> Any:
    """A lower bound as it is kept: relative to the drift, rounded down."""
    return np.float32(min(bound + drift, LARGEST) * (1.0 - SAFETY) - TINY)


@inline
def stored_upper(bound: float, drift: float) -> Any:
    """An upper bound as it is kept: relative to the drift, rounded up."""
    return np.float32(max(bound - drift, -LARGEST) + (bound + drift) * SAFETY + TINY)


@kernel
def unsettled(
    chosen: Any,  # IN  (n,) rows of the shard
    labels: Any,  # IN  (n,) their clusters; −1: not seen before
    upper: Any,  # IN  (N,) stored upper bounds
    lower: Any,  # IN  (N, groups) stored lower bounds
    drift: Any,  # IN  (C,) path of every centre
    group_drift: Any,  # IN  (groups,) path of every group
    out: Any,  # OUT (n,) positions of rows seen before that their bounds do not settle; from the end, of new ones
) -> tuple[int, int]:
    """Rows that must be looked at, and new ones: how many of each. O(n · groups), and no row is read."""
    n_groups, n = group_drift.shape[0], chosen.shape[0]
    n_open, n_new = 0, 0
    for i in range(n):
        r, c = chosen[i], labels[i]
        if c < 0:
            n_new += 1
            out[n - n_new] = i
            continue
        limit = upper[r] + drift[c]
        within = 0
        for g in range(n_groups):
            within += lower[r, g] - group_drift[g] <= limit
        if within > 0:
            out[n_open] = i
            n_open += 1
    return n_open, n_new


@inline
def count_close(lower: Any, r: int, group_drift: Any, starts: Any, limit: float) -> int:
    """Centres that bounds do not rule out for a row whose own one is at most so far. O(groups)."""
    n = 0
    for g in range(group_drift.shape[0]):
        n += starts[g + 1] - starts[g] if lower[r, g] - group_drift[g] <= limit else 0
    return n


@inline
def collect_close(
    lower: Any, r: int, group_drift: Any, order: Any, starts: Any, limit: float, own: int, among: Any
) -> int:
    """The row's own centre, and then those that bounds do not rule out; how many. O(groups + candidates)."""
    among[0, 0] = own
    n = 1
    for g in range(group_drift.shape[0]):
        if lower[r, g] - group_drift[g] <= limit:
            for position in range(starts[g], starts[g + 1]):
                if order[position] != own:
                    among[0, n] = order[position]
                    n += 1
    return n


@inline
def closest_among(
    rows: Any, row: int, scale: float, centers: Any, norms: Any, errors: Any, share: float, among: Any, squares: Any,
    n: int,
) -> int:  # fmt: skip
    """The closest of these centres, the lowest index on ties. O(n), and O(D) where rounding leaves it open."""
    nearest = np.inf
    for k in range(n):
        nearest = min(nearest, np.sqrt(np.float64(squares[k])) * (1.0 + share) + errors[among[0, k]])
    n_close, label, best = 0, -1, np.inf
    for k in range(n):
        if np.sqrt(np.float64(squares[k])) * (1.0 - share) - errors[among[0, k]] <= nearest:
            n_close += 1
            label = among[0, k]
    if n_close == 1:
        return label
    label = -1
    for k in range(n):
        c = among[0, k]
        if np.sqrt(np.float64(squares[k])) * (1.0 - share) - errors[c] <= nearest:
            squared = squared_distance(rows, row, scale, centers, c, norms)
            if label < 0 or squared < best or (squared == best and c < label):
                label, best = c, squared
    return label


@inline
def keep_bounds(
    among: Any, squares: Any, n: int, errors: Any, share: float, group_of: Any, drift: Any, group_drift: Any,
    r: int, label: int, upper: Any, lower: Any,
) -> None:  # fmt: skip
    """Bounds of a row from its distances to its candidates, the first of which was its own centre. O(n)."""
    for k in range(1, n):
        lower[r, group_of[among[0, k]]] = LARGEST
    for k in range(n):
        c = among[0, k]
        distance = np.sqrt(np.float64(squares[k]))
        if c == label:
            upper[r] = stored_upper(distance * (1.0 + share) + errors[c], drift[c])
        else:
            g = group_of[c]
            below = stored_lower(max(distance * (1.0 - share) - errors[c], 0.0), group_drift[g])
            lower[r, g] = min(lower[r, g], below)


@kernel
def search_few(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where each row lies in `rows`
    scales: Any,  # IN  (N,) or empty
    chosen: Any,  # IN  (n,) the rows' numbers in the shard
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,)
    rounded: Any,  # IN  (C, D) the centres in the rows' dtype
    errors: Any,  # IN  (C,) by how much rounding its centre can change a distance
    share: float,  # IN  what share of a distance its own rounding can be
    order: Any,  # IN  (C,) centres sorted by group
    starts: Any,  # IN  (groups + 1,)
    group_of: Any,  # IN  (C,)
    drift: Any,  # IN  (C,)
    group_drift: Any,  # IN  (groups,)
    most: int,  # IN  rows with more candidates than this are left to the product
    upper: Any,  # IN/OUT (N,)
    lower: Any,  # IN/OUT (N, groups)
    labels: Any,  # IN/OUT (n,)
    among: Any,  # scratch (1, C) the row's own centre and its candidates
    squares: Any,  # scratch (C,) squared distances in the rows' dtype
    wide: Any,  # OUT (n,) positions left to the product
) -> tuple[int, int]:
    """Alg. 1 for dense rows with few candidates; how many are left, and distances computed. O(D) a distance.

    Distances are taken in the rows' own precision, and exact ones only of centres between which rounding might decide.
    """
    n_wide, n_distances = 0, 0
    for i in range(chosen.shape[0]):
        if i + AHEAD < chosen.shape[0]:
            fetch(rows, at[i + AHEAD])
        r, c = chosen[i], labels[i]
        scale = scales[r] if scales.shape[0] else 1.0
        squares[0] = quick_distance(rows, at[i], scale, rounded, c, norms)
        own = np.sqrt(np.float64(squares[0])) * (1.0 + share) + errors[c]
        left = not (own < LARGEST and LEAST_SCALE < scale < 1.0 / LEAST_SCALE)  # infinity and NaN say nothing
        if not left:
            upper[r] = stored_upper(own, drift[c])
            left = count_close(lower, r, group_drift, starts, own) > most
        if left:
            wide[n_wide] = i
            n_wide += 1
            continue
        n = collect_close(lower, r, group_drift, order, starts, own, c, among)
        n_distances += n
        if n > 1:
            quick_distances(rows, at[i], scale, rounded, among[:, :n], 0, norms, squares)
            labels[i] = closest_among(rows, at[i], scale, centers, norms, errors, share, among, squares, n)
            keep_bounds(among, squares, n, errors, share, group_of, drift, group_drift, r, labels[i], upper, lower)
    return n_wide, n_distances


@kernel
def bound_by_scores(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where each row lies in `rows`
    chosen: Any,  # IN  (n,) rows of the shard
    lengths: Any,  # IN  (n,) ‖x − offset‖
    scales: Any,  # IN  (n,) or empty
    scores: Any,  # IN  (n, ≥ C) −2 x·(m − offset)
    score_norms: Any,  # IN  (C,) ‖m − offset‖²
    longest: float,  # IN  the largest ‖m − offset‖
    slack: float,  # IN  error of the norms
    group_of: Any,  # IN  (C,)
    drift: Any,  # IN  (C,)
    group_drift: Any,  # IN  (groups,)
    n_columns: int,  # IN
    unit: float,  # IN  unit round-off of the scores
    tiny: float,  # IN  their smallest normal number
    best: Any,  # IN  (n,) no less than the squared distance to the own centre
    labels: Any,  # IN  (n,)
    upper: Any,  # OUT (N,)
    lower: Any,  # OUT (N, groups)
    least: Any,  # scratch (groups,)
) -> None:
    """Lines 22 and 26 of Alg. 5: bounds as tight as the scores allow. O(n · C)."""
    n_groups, C = group_drift.shape[0], group_of.shape[0]
    for i in range(chosen.shape[0]):
        r = chosen[i]
        scale = scales[i] if scales.shape[0] else 1.0
        length = scale * lengths[i]
        error = slack + rounding(rows, at[i], length + longest, scale, n_columns, unit, tiny)
        useless = scores_may_overflow(length + longest, scale, tiny)
        shift = length * length - error
        if n_groups == C:  # Elkan's: every centre is its own group
            for c in range(C):
                squared = score_norms[c] + scale * scores[i, c] + shift
                lower[r, c] = stored_lower(0.0 if useless else np.sqrt(max(squared, 0.0)), group_drift[c])
            lower[r, labels[i]] = LARGEST
        else:
            for g in range(n_groups):
                least[g] = np.inf
            for c in range(C):
                if c != labels[i]:
                    squared = score_norms[c] + scale * scores[i, c] + shift
                    least[group_of[c]] = min(least[group_of[c]], squared)
            for g in range(n_groups):
                lower[r, g] = stored_lower(0.0 if useless else np.sqrt(max(least[g], 0.0)), group_drift[g])
        reach = 2.0 * length + np.sqrt(best[i])
        own = np.sqrt(best[i] + slack + rounding(rows, at[i], reach, scale, n_columns, unit, tiny))
        upper[r] = stored_upper(own, drift[labels[i]])
