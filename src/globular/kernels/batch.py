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

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.kernels.rows import fetch, quick_distance, quick_distances, squared_distance
from globular.kernels.sums import AHEAD

SAFETY = 2.0**-22
TINY, LARGEST = 2.0**-126, 2.0**127  # within these, float32 rounds with a relative error below the safety


@inline
def stored_lower(bound: float, drift: float) -> Any:
    """A lower bound as it is kept: relative to the drift, rounded down."""
    return np.float32(min(bound + drift, LARGEST) * (1.0 - SAFETY) - TINY)


@inline
def stored_upper(bound: float, drift: float) -> Any:
    """An upper bound as it is kept: relative to the drift, rounded up."""
    return np.float32(max(bound - drift, -LARGEST) + (bound + drift) * SAFETY + TINY)


@kernel
def copy_labels(
    queue: Queue,  # IN/OUT blocks
    size: int,  # IN  rows of a block
    batch: Any,  # IN  (b,) rows of the shard
    labels: Any,  # IN  (N,)
    former: Any,  # OUT (b,) those of the batch
    new: Any,  # OUT (b,) the same
) -> None:
    """The labels of the batch. O(b)."""
    begin = size * take_number(queue)
    while begin < batch.shape[0]:
        for i in range(begin, min(begin + size, batch.shape[0])):
            former[i] = new[i] = labels[batch[i]]
        begin = size * take_number(queue)


@kernel
def write_labels(
    queue: Queue,  # IN/OUT blocks
    size: int,  # IN  rows of a block
    batch: Any,  # IN  (b,) rows of the shard
    former: Any,  # IN  (b,)
    new: Any,  # IN  (b,)
    labels: Any,  # OUT (N,)
    moved: Any,  # OUT (1, b) positions of rows that change their cluster, from where each block begins
    n_moved: Any,  # OUT (blocks,)
) -> None:
    """The new labels of the batch. O(b)."""
    block = take_number(queue)
    while block < n_moved.shape[0]:
        begin = block * size
        n = 0
        for i in range(begin, min(begin + size, batch.shape[0])):
            if new[i] != former[i]:
                labels[batch[i]] = new[i]
                moved[0, begin + n] = i
                n += 1
        n_moved[block] = n
        block = take_number(queue)


@kernel
def find_unsettled(
    queue: Queue,  # IN/OUT blocks
    size: int,  # IN  rows of a block
    batch: Any,  # IN  (b,) rows of the shard
    labels: Any,  # IN  (b,) their clusters; −1: not seen before
    drift: Any,  # IN  (C,) path of every centre
    group_drift: Any,  # IN  (groups,) path of every group
    upper: Any,  # IN  (N,) stored upper bounds
    lower: Any,  # IN  (N, groups) stored lower bounds
    found: Any,  # OUT (1, b) positions of rows that are new or not settled by their bounds, from where a block begins
    n_found: Any,  # OUT (blocks,)
) -> None:
    """Rows that must be looked at. O(b · groups), and no row is read."""
    n_groups = group_drift.shape[0]
    block = take_number(queue)
    while block < n_found.shape[0]:
        begin = block * size
        n = 0
        for i in range(begin, min(begin + size, batch.shape[0])):
            r, c = batch[i], labels[i]
            within = 1 if c < 0 else 0
            if c >= 0:
                limit = upper[r] + drift[c]
                for g in range(n_groups):
                    within += lower[r, g] - group_drift[g] <= limit
            if within > 0:
                found[0, begin + n] = i
                n += 1
        n_found[block] = n
        block = take_number(queue)


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


@inline
def place_of(k: int, row: int, places: Any) -> int:
    """Where the k-th of some rows lies: where its number says if there are no places."""
    return places[k] if places.shape[0] else row


@kernel
def search_few(
    queue: Queue,  # IN/OUT blocks
    size: int,  # IN  rows of a block
    positions: Any,  # IN  (n,) rows of the batch to look at
    rows: Any,  # IN
    places: Any,  # IN  (n,) where they lie in `rows`; empty: where their numbers say
    scales: Any,  # IN  (N,) or empty
    batch: Any,  # IN  (b,) the rows' numbers in the shard
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,)
    rounded: Any,  # IN  (C, D) the centres in the rows' dtype
    errors: Any,  # IN  (C,) by how much rounding its centre can change a distance
    share: float,  # IN  what share of a distance its own rounding can be
    order: Any,  # IN  (C,) centres sorted by group
    starts: Any,  # IN  (groups + 1,)
    most: int,  # IN  rows with more candidates than this are left to the product
    group_of: Any,  # IN  (C,)
    drift: Any,  # IN  (C,)
    group_drift: Any,  # IN  (groups,)
    upper: Any,  # IN/OUT (N,)
    lower: Any,  # IN/OUT (N, groups)
    labels: Any,  # IN/OUT (b,)
    among: Scratch,  # scratch (1, C) the row's own centre and its candidates
    squares: Scratch,  # scratch (C,) squared distances in the rows' dtype
    wide: Any,  # OUT (1, n) positions left to the product, from where each block begins
    numbers: Any,  # OUT (blocks, 2) how many those are, and distances computed
) -> None:
    """Alg. 1 for dense rows with few candidates. O(D) a distance.

    Distances are taken in the rows' own precision, and exact ones only of centres between which rounding might decide.
    """
    block = take_number(queue)
    while block < numbers.shape[0]:
        begin, end = block * size, min((block + 1) * size, positions.shape[0])
        n_wide, n_distances = 0, 0
        for k in range(begin, end):
            if k + AHEAD < end:
                fetch(rows, place_of(k + AHEAD, batch[positions[k + AHEAD]], places))
            i = positions[k]
            r, c = batch[i], labels[i]
            at = place_of(k, r, places)
            scale = scales[r] if scales.shape[0] else 1.0
            left = c < 0
            if not left:
                squares[0] = quick_distance(rows, at, scale, rounded, c, norms)
                own = np.sqrt(np.float64(squares[0])) * (1.0 + share) + errors[c]
                # infinity and NaN say nothing, and scales beyond these lose their precision in float32
                left = not (own < LARGEST and 2.0**-100 < scale < 2.0**100)
                if not left:
                    upper[r] = stored_upper(own, drift[c])
                    left = count_close(lower, r, group_drift, starts, own) > most
            if left:
                wide[0, begin + n_wide] = i
                n_wide += 1
                continue
            n = collect_close(lower, r, group_drift, order, starts, own, c, among)
            n_distances += n
            if n > 1:
                quick_distances(rows, at, scale, rounded, among[:, :n], 0, norms, squares)
                labels[i] = closest_among(rows, at, scale, centers, norms, errors, share, among, squares, n)
                keep_bounds(among, squares, n, errors, share, group_of, drift, group_drift, r, labels[i], upper, lower)
        numbers[block, 0], numbers[block, 1] = n_wide, n_distances
        block = take_number(queue)
