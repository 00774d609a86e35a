"""Kernels of seeding: distances to the closest seed, and D² sampling inside the cells of a tree.

Squared distances are taken in the difference form, so a row that equals a seed is at distance zero and is never drawn
again. Unit rows carry the rounding of their scale: for them callers pass the level below which a distance counts as
zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, Scratch, kernel, take_number
from globular.jit.views import as_matrix
from globular.kernels.cells import score_block
from globular.kernels.nearest import nominate_and_check
from globular.kernels.rows import rows_between, squared_distance
from globular.kernels.scores import copy_row
from globular.kernels.thin import nearest_of_thin


@kernel
def lower_by_one(
    rows: Any,  # IN  the rows of this block
    scales: Any,  # IN  (n,) row scales or empty
    weights: Any,  # IN  (n,) or empty
    centers: Any,  # IN  (1, D) the new seed, float64
    norms: Any,  # IN  (1,) ‖m‖²
    number: int,  # IN  its number since the restart
    zero: float,  # IN  squared distances up to this count as zero
    d2: Any,  # IN/OUT (n,) squared distance to the closest seed
    seeds: Any,  # IN/OUT (n,) its number
) -> float:
    """Lower a block by one seed; return Σ w d² of the block. O(n · D), one read of the rows."""
    potential = 0.0
    for i in range(d2.shape[0]):
        scale = scales[i] if scales.shape[0] else 1.0
        distance = squared_distance(rows, i, scale, centers, 0, norms)
        if distance <= zero:
            distance = 0.0
        if distance < d2[i]:
            d2[i] = distance
            seeds[i] = number
        potential += d2[i] * (weights[i] if weights.shape[0] else 1.0)
    return potential


@kernel
def lower_runs_by_one(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    rows: Any,  # IN
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (1, D) the new seed, float64
    norms: Any,  # IN  (1,) ‖m‖²
    number: int,  # IN  its number since the restart
    zero: float,  # IN  squared distances up to this count as zero
    d2: Any,  # IN/OUT (N,)
    seeds: Any,  # IN/OUT (N,)
    sums: Any,  # OUT (runs,) Σ w d²
) -> None:
    """`lower_by_one` for all rows. O(N · D)."""
    r = take_number(queue)
    while r < sums.shape[0]:
        begin, end = r * length, min((r + 1) * length, d2.shape[0])
        sums[r] = lower_by_one(
            rows_between(rows, begin, end), scales[begin:end], weights[begin:end], centers, norms, number, zero,
            d2[begin:end], seeds[begin:end],
        )  # fmt: skip
        r = take_number(queue)


@kernel
def settle_seeds(
    best: Any,  # IN  (n,) squared distance to the closest of old and new seeds
    found: Any,  # IN  (n,) index among the new seeds, where that is lower than `d2`
    zero: float,  # IN  squared distances up to this count as zero
    base: int,  # IN  number of the first new seed
    d2: Any,  # IN/OUT (n,)
    seeds: Any,  # IN/OUT (n,)
) -> None:
    """Write what a product with many new seeds has found. O(n)."""
    for i in range(d2.shape[0]):
        if best[i] < d2[i]:
            d2[i] = best[i] if best[i] > zero else 0.0
            seeds[i] = base + found[i]


@kernel
def lower_by_many(
    queue: Queue,  # IN/OUT blocks of B rows
    rows: Any,  # IN
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) or empty
    factors: Any,  # IN  −2 (m − offset), see `cells`
    score_norms: Any,  # IN  (C,) ‖m − offset‖²
    centers: Any,  # IN  (C, D) the new seeds, float64
    norms: Any,  # IN  (C,) ‖m‖²
    unit: float,  # IN  unit round-off of the scores
    tiny: float,  # IN  their smallest normal number
    zero: float,  # IN  squared distances up to this count as zero
    base: int,  # IN  number of the first new seed
    everyone: Any,  # IN  (N,) 0, 1, 2, …
    d2: Any,  # IN/OUT (N,)
    seeds: Any,  # IN/OUT (N,)
    seen: Scratch,  # scratch (B, D)
    scores: Scratch,  # scratch (B · chunk,) for so many seeds at a time
    lengths: Scratch,  # scratch (B,)
    keys: Scratch,  # scratch (chunk / TILE, rounded up) integers as wide as a score
    best: Scratch,  # scratch (B,)
    found: Scratch,  # scratch (B,) int32
) -> None:
    """Lower all rows by many seeds, exactly: products nominate, see `nearest`. O(N · C · D)."""
    n, C, B = d2.shape[0], centers.shape[0], lengths.shape[0]
    chunk = scores.shape[0] // B
    begin = B * take_number(queue)
    while begin < n:
        end = min(begin + B, n)
        m = end - begin
        # not by `rows_between`: here references to arrays are counted, there they are not
        block = (rows[0][begin:end],) if len(rows) == 1 else (rows[0], rows[1], rows[2][begin : end + 1])
        for i in range(m):
            best[i] = d2[begin + i]
            # with seeds already there, C stands for "none of the new ones"
            found[i] = -1 if base == 0 else C
        for first in range(0, C, chunk):
            width = min(chunk, C - first)
            part = as_matrix(scores, m, width)
            score_block(rows, everyone[begin:end], offset, factors, first, seen, part, lengths)
            nominate_and_check(
                block, lengths, scales[begin:end], part, score_norms[first : first + width], centers, norms, first,
                unit, tiny, best, found, keys,
            )  # fmt: skip
        settle_seeds(best[:m], found, zero, base, d2[begin:end], seeds[begin:end])
        begin = B * take_number(queue)


@kernel
def lower_thin_by_many(
    queue: Queue,  # IN/OUT blocks of B rows
    rows: Any,  # IN  dense, of few columns
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) or empty
    factors: Any,  # IN  (D, C)
    score_norms: Any,  # IN  (C,)
    centers: Any,  # IN  (C, D)
    norms: Any,  # IN  (C,)
    unit: float,  # IN
    tiny: float,  # IN
    zero: float,  # IN
    base: int,  # IN
    d2: Any,  # IN/OUT (N,)
    seeds: Any,  # IN/OUT (N,)
    seen: Scratch,  # scratch (B, D)
    lengths: Scratch,  # scratch (B,)
    best: Scratch,  # scratch (B,)
    found: Scratch,  # scratch (B,) int32
    lanes: Scratch,  # scratch (3 + D, LANES) in the scores' dtype
    nearest: Scratch,  # scratch (LANES,) int32
) -> None:
    """The same as `lower_by_many`. O(N · C · D)."""
    n, C, B = d2.shape[0], centers.shape[0], lengths.shape[0]
    begin = B * take_number(queue)
    while begin < n:
        end = min(begin + B, n)
        for i in range(end - begin):
            lengths[i] = np.sqrt(copy_row(rows[0], begin + i, offset, seen, i))
            best[i] = d2[begin + i]
            found[i] = -1 if base == 0 else C
        nearest_of_thin(
            rows_between(rows, begin, end), seen[: end - begin], lengths, scales[begin:end], factors, score_norms,
            centers, norms, 0, unit, tiny, best, found, lanes, nearest,
        )  # fmt: skip
        settle_seeds(best[: end - begin], found, zero, base, d2[begin:end], seeds[begin:end])
        begin = B * take_number(queue)


@kernel
def trial_potentials(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    rows: Any,  # IN
    scales: Any,  # IN  (N,) row scales or empty
    weights: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (T, D) float64
    norms: Any,  # IN  (T,) ‖m‖²
    d2: Any,  # IN  (N,)
    out: Any,  # OUT (runs, T) Σ w min(d², ‖x − m_t‖²)
) -> None:
    """What the potential of every run would be with each of the trial seeds alone. O(N · T · D)."""
    r = take_number(queue)
    while r < out.shape[0]:
        out[r] = 0.0
        for i in range(r * length, min((r + 1) * length, d2.shape[0])):
            weight = weights[i] if weights.shape[0] else 1.0
            if weight == 0.0 or d2[i] == 0.0:
                continue
            scale = scales[i] if scales.shape[0] else 1.0
            for t in range(centers.shape[0]):
                out[r, t] += weight * min(d2[i], squared_distance(rows, i, scale, centers, t, norms))
        r = take_number(queue)


@kernel
def weighted_sum(
    d2: Any,  # IN  (n,)
    weights: Any,  # IN  (n,) or empty
) -> float:
    """Σ w d². O(n)."""
    total = 0.0
    for i in range(d2.shape[0]):
        total += d2[i] * (weights[i] if weights.shape[0] else 1.0)
    return total


@kernel
def draw_row(
    mass: float,  # IN  between 0 and Σ w d²
    d2: Any,  # IN  (n,)
    weights: Any,  # IN  (n,) or empty
) -> int:
    """First row at which the running sum of w d² exceeds the mass; −1 if all of them are zero. O(n)."""
    total, last = 0.0, -1
    for i in range(d2.shape[0]):
        share = d2[i] * (weights[i] if weights.shape[0] else 1.0)
        if share > 0.0:
            total += share
            last = i
            if total > mass:
                break
    return last


@kernel
def lower_cell(
    x: Any,  # IN  (n, D) rows of one cell
    weights: Any,  # IN  (n,) or empty
    chosen: int,  # IN  the row that became a seed
    d2: Any,  # IN/OUT (n,) in the rows' dtype
) -> float:
    """Lower a cell's distances by one of its own rows; return Σ w d². O(n · D) in the rows' precision."""
    potential = 0.0
    for i in range(x.shape[0]):
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            difference = x[i, j] - x[chosen, j]
            total += difference * difference
        d2[i] = min(d2[i], total)
        potential += d2[i] * (weights[i] if weights.shape[0] else 1.0)
    return potential


@kernel
def seed_cell(
    x: Any,  # IN  (n, D) rows of one cell
    weights: Any,  # IN  (n,) or empty
    uniforms: Any,  # IN  (quota,) numbers in [0, 1), one for each seed
    d2: Any,  # scratch (n,) in the rows' dtype
    chosen: Any,  # OUT (quota,) rows that became seeds; −1 when no distinct row was left
) -> None:
    """k-means++ inside one cell: each seed drawn in proportion to w d². O(n · quota · D)."""
    chosen[:] = -1
    d2[:] = 1.0
    potential = weighted_sum(d2, weights)
    for s in range(chosen.shape[0]):
        row = draw_row(uniforms[s] * potential, d2, weights)
        if row < 0:
            return
        chosen[s] = row
        if s == 0:
            d2[:] = np.inf
        potential = lower_cell(x, weights, row, d2)


@kernel
def seed_cells(
    queue: Queue,  # IN/OUT cells
    x: Any,  # IN  (n, D) rows in the order of their cells
    weights: Any,  # IN  (n,) or empty
    starts: Any,  # IN  (cells + 1,)
    ends: Any,  # IN  (cells + 1,) where the seeds of each cell begin
    uniforms: Any,  # IN  (seeds,) numbers in [0, 1)
    d2: Scratch,  # scratch (largest cell,) in the rows' dtype
    chosen: Any,  # OUT (seeds,) rows that became seeds; −1 where no distinct row was left
) -> None:
    """`seed_cell` for all cells. O(n · quota · D)."""
    g = take_number(queue)
    while g < starts.shape[0] - 1:
        begin, end = starts[g], starts[g + 1]
        out = chosen[ends[g] : ends[g + 1]]
        seed_cell(x[begin:end], weights[begin:end], uniforms[ends[g] : ends[g + 1]], d2[: end - begin], out)
        for k in range(out.shape[0]):
            if out[k] >= 0:
                out[k] += begin
        g = take_number(queue)
