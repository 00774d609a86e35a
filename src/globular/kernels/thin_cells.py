"""The kernels of `cells` for dense rows of few columns, without a buffer of scores where that is possible.

Factors are (D, C). See `thin` for the lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.kernels.nearest import thin_scores
from globular.kernels.probe import closest_cells, merge_closest
from globular.kernels.rows import squared_distance
from globular.kernels.scores import copy_row
from globular.kernels.thin import LANES, STATE, lower_lanes, nearest_of_thin


@kernel
def route_thin(
    queue: Queue,  # IN/OUT blocks of B rows
    rows: Any,  # IN
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) or empty
    factors: Any,  # IN
    score_norms: Any,  # IN  (cells,) ‖m − offset‖²
    seen: Scratch,  # scratch (B, D)
    scores: Scratch,  # scratch (B, cells)
    keys: Scratch,  # scratch (cells rounded up to a multiple of HEAT,) integers as wide as a score
    winners: Scratch,  # scratch (cells / HEAT, rounded up) of the same type
    cells: Any,  # OUT (N, p) the p closest cells of every row, closest first
) -> None:
    """O(N · (cells · D + p · HEAT))."""
    n, B = rows[0].shape[0], scores.shape[0]
    begin = B * take_number(queue)
    while begin < n:
        m = min(B, n - begin)
        for k in range(m):
            copy_row(rows[0], begin + k, offset, seen, k)
        thin_scores(seen[:m], factors, scores[:m])
        closest_cells(scores[:m], score_norms, scales[begin : begin + m], cells[begin : begin + m], keys, winners)
        begin = B * take_number(queue)


@kernel
def merge_cells_of_thin(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T, 3)
    rows: Any,  # IN
    order: Any,  # IN  (N,)
    places: Any,  # IN  (N,)
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) or empty
    starts: Any,  # IN  (cells above + 1,)
    members: Any,  # IN  (cells,) numbers of the cells
    factors: Any,  # IN
    score_norms: Any,  # IN  (cells,)
    seen: Scratch,  # scratch (B, D)
    scores: Scratch,  # scratch (B, largest cell above)
    costs: Any,  # IN/OUT (N, p) the p lowest scores so far, ascending
    cells: Any,  # IN/OUT (N, p) whose they are
) -> None:
    """The same as `cells.merge_cells`. O(N · D · members)."""
    B = scores.shape[0]
    t = take_number(queue)
    while t < tasks.shape[0]:
        first, stop = starts[tasks[t, 0]], starts[tasks[t, 0] + 1]
        for begin in range(tasks[t, 1], tasks[t, 2], B):
            m = min(B, tasks[t, 2] - begin)
            for k in range(m):
                copy_row(rows[0], places[begin + k], offset, seen, k)
            block, chosen = scores[:m, : stop - first], order[begin : begin + m]
            thin_scores(seen[:m], factors[:, first:stop], block)
            merge_closest(block, score_norms[first:stop], scales, chosen, members[first:stop], costs, cells)
        t = take_number(queue)


@inline
def gather_lanes(
    lanes: Any,  # OUT (3 + D, LANES) with nothing found yet
    nearest: Any,  # OUT (LANES,)
    squares: Any,  # OUT (LANES,) ‖x − offset‖², scaled
    x: Any,  # IN  (·, D)
    order: Any,  # IN  (N,)
    places: Any,  # IN  (N,)
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) or empty
    begin: int,  # IN  the row of the first lane is order[begin]
    end: int,  # IN  behind the last row it is repeated
    first: int,  # IN  the centre that stands for none
) -> None:
    """A group of rows from anywhere, one to a lane. O(LANES · D)."""
    for r in range(LANES):
        k = min(begin + r, end - 1)
        scale = scales[order[k]] if scales.shape[0] else 1.0
        stretch = lanes.dtype.type(scale)
        total = 0.0
        for j in range(x.shape[1]):
            value = x[places[k], j]
            if offset.shape[0]:
                value = lanes.dtype.type(value - offset[j])
            total += np.float64(value) * value
            lanes[STATE + j, r] = stretch * value
        squares[r] = scale * scale * total
        lanes[1, r] = np.inf
        lanes[2, r] = np.inf
        nearest[r] = first


@kernel
def search_cells_of_thin(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T, 3)
    rows: Any,  # IN
    order: Any,  # IN  (N,)
    places: Any,  # IN  (N,)
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) or empty
    starts: Any,  # IN  (cells + 1,)
    members: Any,  # IN  (C,) centres in the order of their cells
    factors: Any,  # IN
    score_norms: Any,  # IN  (C,) in that order
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) float64
    is_first: bool,  # IN  whether `best` is still to be measured
    former: Any,  # OUT (N,) labels before the first round
    best: Any,  # IN/OUT (N,) squared distance to the label's centre
    labels: Any,  # IN/OUT (N,)
    lanes: Scratch,  # scratch (3 + D, LANES) in the scores' dtype
    nearest: Scratch,  # scratch (LANES,) int32
    squares: Scratch,  # scratch (LANES,) float64
) -> None:
    """The same as `cells.search_cells`: the lowest score wins if it is closer in float64. O(N · members · D)."""
    t = take_number(queue)
    while t < tasks.shape[0]:
        first, stop, end = starts[tasks[t, 0]], starts[tasks[t, 0] + 1], tasks[t, 2]
        for base in range(tasks[t, 1], end, LANES):
            gather_lanes(lanes, nearest, squares, rows[0], order, places, scales, offset, base, end, first)
            for c in range(first, stop):
                lower_lanes(lanes, nearest, factors, c, score_norms[c])
            for r in range(min(LANES, end - base)):
                i, at = order[base + r], places[base + r]
                scale = scales[i] if scales.shape[0] else 1.0
                if is_first:
                    former[i] = labels[i]
                    best[i] = squared_distance(rows, at, scale, centers, labels[i], norms)
                # not worth an exact distance if it is worse by more than rounding can explain
                c = members[nearest[r]]
                if c == labels[i] or lanes[1, r] + squares[r] > (best[i] + 1e-5 * squares[r]) * (1.0 + 1e-5):
                    continue
                distance = squared_distance(rows, at, scale, centers, c, norms)
                if distance < best[i]:
                    best[i] = distance
                    labels[i] = c
        t = take_number(queue)


@kernel
def descend_cells_of_thin(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T, 3)
    rows: Any,  # IN
    order: Any,  # IN  (N,)
    places: Any,  # IN  (N,)
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) or empty
    starts: Any,  # IN  (cells + 1,)
    factors: Any,  # IN
    score_norms: Any,  # IN  (K,)
    centers: Any,  # IN  (K, D) float64, in the order of their cells
    norms: Any,  # IN  (K,) float64
    unit: float,  # IN  unit round-off of the scores
    tiny: float,  # IN  their smallest normal number
    children: Any,  # IN/OUT (N,) the closest centre of the row's cell
    d2: Any,  # OUT (N,) its squared distance
    changed: Any,  # OUT (T,) rows whose child has changed
    gathered: Scratch,  # scratch (LANES, D) in the rows' dtype
    seen: Scratch,  # scratch (LANES, D)
    lengths: Scratch,  # scratch (3, LANES): lengths, scales, squared distances
    found: Scratch,  # scratch (LANES,) int32
    lanes: Scratch,  # scratch (3 + D, LANES) in the scores' dtype
    nearest: Scratch,  # scratch (LANES,) int32
) -> None:
    """The same as `cells.descend_cells`. O(N · children · D)."""
    nothing = offset[:0]
    t = take_number(queue)
    while t < tasks.shape[0]:
        first, stop, end = starts[tasks[t, 0]], starts[tasks[t, 0] + 1], tasks[t, 2]
        n_changed = 0
        for base in range(tasks[t, 1], end, LANES):
            m = min(LANES, end - base)
            for k in range(m):
                copy_row(rows[0], places[base + k], nothing, gathered, k)
                lengths[0, k] = np.sqrt(copy_row(rows[0], places[base + k], offset, seen, k))
                lengths[1, k] = scales[order[base + k]] if scales.shape[0] else 1.0
                lengths[2, k] = np.inf
                found[k] = -1
            nearest_of_thin(
                (gathered,), seen[:m], lengths[0], lengths[1], factors[:, first:stop], score_norms[first:stop],
                centers, norms, first, unit, tiny, lengths[2], found, lanes, nearest,
            )  # fmt: skip
            for k in range(m):
                i = order[base + k]
                n_changed += children[i] != found[k]
                children[i] = found[k]
                d2[i] = lengths[2, k]
        changed[t] = n_changed
        t = take_number(queue)
