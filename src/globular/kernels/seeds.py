"""Kernels of seeding: distances to the closest seed, and D² sampling inside the cells of a tree.

Squared distances are taken in the difference form, so a row that equals a seed is at distance zero and is never drawn
again. Unit rows carry the rounding of their scale: for them callers pass the level below which a distance counts as
zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import kernel
from globular.kernels.rows import squared_distance


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
def settle_seeds(
    best: Any,  # IN  (n,) squared distance to the closest of old and new seeds
    found: Any,  # IN  (n,) index among the new seeds, where that is lower than `d2`
    zero: float,  # IN  squared distances up to this count as zero
    base: int,  # IN  number of the first new seed
    weights: Any,  # IN  (n,) or empty
    d2: Any,  # IN/OUT (n,)
    seeds: Any,  # IN/OUT (n,)
) -> float:
    """Write what a product with many new seeds has found; return Σ w d² of the block. O(n)."""
    potential = 0.0
    for i in range(d2.shape[0]):
        if best[i] < d2[i]:
            d2[i] = best[i] if best[i] > zero else 0.0
            seeds[i] = base + found[i]
        potential += d2[i] * (weights[i] if weights.shape[0] else 1.0)
    return potential


@kernel
def trial_potentials(
    rows: Any,  # IN  the rows of this block
    scales: Any,  # IN  (n,) row scales or empty
    weights: Any,  # IN  (n,) or empty
    centers: Any,  # IN  (T, D) float64
    norms: Any,  # IN  (T,) ‖m‖²
    d2: Any,  # IN  (n,)
    out: Any,  # OUT (T,) Σ w min(d², ‖x − m_t‖²)
) -> None:
    """What the potential of this block would be with each of the trial seeds alone. O(n · T · D)."""
    out[:] = 0.0
    for i in range(d2.shape[0]):
        weight = weights[i] if weights.shape[0] else 1.0
        if weight == 0.0 or d2[i] == 0.0:
            continue
        scale = scales[i] if scales.shape[0] else 1.0
        for t in range(centers.shape[0]):
            out[t] += weight * min(d2[i], squared_distance(rows, i, scale, centers, t, norms))


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
