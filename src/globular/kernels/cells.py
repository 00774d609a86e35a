"""Rows in groups by cell against the centres of their cell: scores by a product, then what a pass makes of them.

A call is one thread's share of a pass: it takes tasks from a queue, each some rows of one cell, until none is left.
The rows of a task are copied together a block at a time, so that a block and its scores stay in the cache. Results go
to places of the rows and of the task alone, so it does not matter who does a task.

Cell g has the centres starts[g] … starts[g + 1] − 1. A task is (cell, begin, end): the rows order[begin:end], which lie
at places[begin:end] of `rows`. Factors are −2 (m − offset): (C, D) for dense rows, whose product BLAS takes, and
(D, C) for CSR rows.
"""

from __future__ import annotations

from typing import Any

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.jit.bits import float_bits
from globular.jit.blas import multiply_rows
from globular.jit.prefetch import prefetch_row
from globular.jit.views import as_matrix
from globular.kernels.nearest import TILE, find_in_tile, tile_minima
from globular.kernels.probe import closest_cells, merge_closest
from globular.kernels.rows import length, multiply_csr_row, row_length, squared_distance
from globular.kernels.scores import copy_row, decide


@kernel
def csr_scores_of(
    rows: Any,  # IN  (data, indices, indptr)
    at: Any,  # IN  (m,) rows to multiply
    factors: Any,  # IN  (D, C)
    first: int,  # IN  centres first … first + chunk − 1
    scores: Any,  # OUT (m, chunk)
    lengths: Any,  # OUT (≥ m,) ‖x‖
) -> None:
    """scores = x · factors. O(nnz · chunk)."""
    for k in range(scores.shape[0]):
        lengths[k] = row_length(rows, at[k])
        multiply_csr_row(rows, at[k], 1.0, factors, first, scores[k])


@kernel
def score_block(
    rows: Any,  # IN
    at: Any,  # IN  (m,) where each row lies
    offset: Any,  # IN  (D,) or empty
    factors: Any,  # IN
    first: int,  # IN  centres first … first + chunk − 1
    seen: Any,  # scratch (≥ m, D) for dense rows
    scores: Any,  # OUT (m, chunk) −2 x·(m − offset)
    lengths: Any,  # OUT (≥ m,) ‖x − offset‖
) -> None:
    """Scores of a block of rows with some centres. O(m · chunk · D)."""
    m, chunk = scores.shape
    if len(rows) == 1:
        for k in range(m):
            if k + 4 < m:
                prefetch_row(rows[0], at[k + 4])
            copy_row(rows[0], at[k], offset, seen, k)
            lengths[k] = length(seen[k], 0, seen.shape[1])
        multiply_rows(seen, 0, m, factors, first, chunk, scores)
    else:
        csr_scores_of(rows, at, factors, first, scores, lengths)


@inline
def block_size(scores: Any, n_centers: int, most: int) -> int:
    """Rows whose scores with so many centres fit into the scratch."""
    return min(most, scores.shape[0] // n_centers)


@kernel
def route_rows(
    queue: Queue,  # IN/OUT blocks of B rows
    rows: Any,  # IN
    places: Any,  # IN  (N,) where each row lies, or empty: 0, 1, 2, …
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) or empty
    factors: Any,  # IN
    score_norms: Any,  # IN  (cells,) ‖m − offset‖²
    seen: Scratch,  # scratch (B, D)
    scores: Scratch,  # scratch (B · cells,)
    lengths: Scratch,  # scratch (B,)
    keys: Scratch,  # scratch (cells rounded up to a multiple of HEAT,) integers as wide as a score
    winners: Scratch,  # scratch (cells / HEAT, rounded up) of the same type
    cells: Any,  # OUT (N, p) the p closest cells of every row, closest first
) -> None:
    """O(N · (cells · D + p · HEAT))."""
    n, n_cells = cells.shape[0], score_norms.shape[0]
    B, in_turn = lengths.shape[0], places.shape[0] == 0
    begin = B * take_number(queue)
    while begin < n:
        m = min(B, n - begin)
        block = as_matrix(scores, m, n_cells)
        if len(rows) > 1:
            for k in range(m):
                multiply_csr_row(rows, begin + k if in_turn else places[begin + k], 1.0, factors, 0, block[k])
        elif in_turn and offset.shape[0] == 0:
            multiply_rows(rows[0], begin, m, factors, 0, n_cells, block)
        else:
            for k in range(m):
                if not in_turn and k + 4 < m:
                    prefetch_row(rows[0], places[begin + k + 4])
                copy_row(rows[0], begin + k if in_turn else places[begin + k], offset, seen, k)
            multiply_rows(seen, 0, m, factors, 0, n_cells, block)
        closest_cells(block, score_norms, scales[begin : begin + m], cells[begin : begin + m], keys, winners)
        begin = B * take_number(queue)


@kernel
def merge_cells(
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
    scores: Scratch,  # scratch
    lengths: Scratch,  # scratch (B,)
    costs: Any,  # IN/OUT (N, p) the p lowest scores so far, ascending
    cells: Any,  # IN/OUT (N, p) whose they are
) -> None:
    """Each row against the cells in one of the cells above. O(N · D · members)."""
    t = take_number(queue)
    while t < tasks.shape[0]:
        first, stop = starts[tasks[t, 0]], starts[tasks[t, 0] + 1]
        B = block_size(scores, stop - first, lengths.shape[0])
        for begin in range(tasks[t, 1], tasks[t, 2], B):
            end = min(begin + B, tasks[t, 2])
            block = as_matrix(scores, end - begin, stop - first)
            score_block(rows, places[begin:end], offset, factors, first, seen, block, lengths)
            chosen = order[begin:end]
            merge_closest(block, score_norms[first:stop], scales, chosen, members[first:stop], costs, cells)
        t = take_number(queue)


@kernel
def search_cells(
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
    seen: Scratch,  # scratch (B, D)
    scores: Scratch,  # scratch
    lengths: Scratch,  # scratch (B,)
    keys: Scratch,  # scratch (largest cell / TILE, rounded up) integers as wide as a score
) -> None:
    """One round of probing: each row against the centres of one cell. O(N · D · members)."""
    t = take_number(queue)
    while t < tasks.shape[0]:
        first, stop = starts[tasks[t, 0]], starts[tasks[t, 0] + 1]
        B = block_size(scores, stop - first, lengths.shape[0])
        for begin in range(tasks[t, 1], tasks[t, 2], B):
            end = min(begin + B, tasks[t, 2])
            block = as_matrix(scores, end - begin, stop - first)
            at, chosen = places[begin:end], order[begin:end]
            score_block(rows, at, offset, factors, first, seen, block, lengths)
            if is_first:
                own_distances_of(rows, at, chosen, scales, centers, norms, labels, former, best)
            check_cell(
                rows, at, chosen, lengths, scales, block, score_norms[first:stop], members[first:stop], centers, norms,
                best, labels, keys,
            )  # fmt: skip
        t = take_number(queue)


@kernel
def own_distances_of(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where some rows lie
    chosen: Any,  # IN  (n,) their numbers in the shard
    scales: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) float64
    labels: Any,  # IN  (N,)
    former: Any,  # OUT (N,) the same
    best: Any,  # OUT (N,) ‖x − m_label‖²
) -> None:
    """Squared distance of some rows to the centre of their label. O(n · D)."""
    for k in range(at.shape[0]):
        i = chosen[k]
        scale = scales[i] if scales.shape[0] else 1.0
        former[i] = labels[i]
        best[i] = squared_distance(rows, at[k], scale, centers, labels[i], norms)


@kernel
def check_cell(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where the rows of a block lie
    chosen: Any,  # IN  (n,) their numbers in the shard
    lengths: Any,  # IN  (n,) ‖x − offset‖
    scales: Any,  # IN  (N,) or empty
    scores: Any,  # IN  (n, members) −2 x·(m − offset)
    score_norms: Any,  # IN  (members,)
    members: Any,  # IN  centres of the cell
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) float64
    best: Any,  # IN/OUT (N,) squared distance to the label's centre
    labels: Any,  # IN/OUT (N,)
    keys: Any,  # scratch, integers as wide as a score
) -> None:
    """The cell's lowest score nominates one centre; it wins if it is closer in float64. O(n · members)."""
    n, n_members = scores.shape
    n_tiles = (n_members + TILE - 1) // TILE
    for k in range(n):
        i = chosen[k]
        scale = scales[i] if scales.shape[0] else 1.0
        stretch = score_norms.dtype.type(scale)
        reach = scale * lengths[k]
        shift = score_norms.dtype.type(reach * reach)
        tile_minima(scores, k, score_norms, stretch, shift, keys)
        lowest = 0
        for t in range(1, n_tiles):
            if keys[t] < keys[lowest]:
                lowest = t
        # not worth an exact distance if it is worse by more than rounding can explain
        limit = float_bits(score_norms.dtype.type((best[i] + 1e-5 * reach * reach) * (1.0 + 1e-5)))
        if keys[lowest] > limit:
            continue
        c = members[find_in_tile(scores, k, score_norms, stretch, shift, lowest, keys[lowest])]
        if c != labels[i]:
            distance = squared_distance(rows, at[k], scale, centers, c, norms)
            if distance < best[i]:
                best[i] = distance
                labels[i] = c


@kernel
def descend_cells(
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
    seen: Scratch,  # scratch (B, D)
    scores: Scratch,  # scratch
    lengths: Scratch,  # scratch (B,)
    stretches: Scratch,  # scratch (B,) or empty: scales of a block
    bounds: Scratch,  # scratch (B,)
    found: Scratch,  # scratch (B,) int32
) -> None:
    """Each row from its cell to the exactly closest child, ties to the lowest index. O(N · D · children)."""
    t = take_number(queue)
    while t < tasks.shape[0]:
        first, stop = starts[tasks[t, 0]], starts[tasks[t, 0] + 1]
        B = block_size(scores, stop - first, lengths.shape[0])
        changed[t] = 0
        for begin in range(tasks[t, 1], tasks[t, 2], B):
            end = min(begin + B, tasks[t, 2])
            m = end - begin
            block = as_matrix(scores, m, stop - first)
            at = places[begin:end]
            score_block(rows, at, offset, factors, first, seen, block, lengths)
            for k in range(stretches.shape[0] and m):
                stretches[k] = scales[order[begin + k]]
            decide(
                rows, at, lengths[:m], stretches[:m], block, score_norms[first:stop], centers[first:stop],
                norms[first:stop], unit, tiny, bounds, found,
            )  # fmt: skip
            changed[t] += settle_children(
                rows, at, order[begin:end], scales, centers, norms, found, first, children, d2
            )
        t = take_number(queue)


@kernel
def settle_children(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where some rows lie
    chosen: Any,  # IN  (n,) their numbers in the shard
    scales: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (K, D) float64
    norms: Any,  # IN  (K,)
    found: Any,  # IN  (n,) centres less `first`
    first: int,  # IN
    children: Any,  # IN/OUT (N,)
    d2: Any,  # OUT (N,)
) -> int:
    """Write what some rows have found; how many had something else. O(n · D)."""
    n_changed = 0
    for k in range(at.shape[0]):
        i, c = chosen[k], first + found[k]
        scale = scales[i] if scales.shape[0] else 1.0
        n_changed += children[i] != c
        children[i] = c
        d2[i] = squared_distance(rows, at[k], scale, centers, c, norms)
    return n_changed
