"""Probing: the closest cells of every row, and the best centre of a cell against what the row already has."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import inline, kernel
from globular.kernels.nearest import TILE, find_in_tile, tile_minima
from globular.kernels.rows import float_bits, order_key, squared_distance

HEAT = 16  # cells per heat of the tournament that finds the closest ones


@kernel
def closest_cells(
    scores: Any,  # IN  (n, cells) −2 x·(m − offset)
    score_norms: Any,  # IN  (cells,) ‖m − offset‖²
    scales: Any,  # IN  (n,) or empty
    cells: Any,  # OUT (n, p) the p cells of lowest score, lowest first
    keys: Any,  # scratch (cells rounded up to a multiple of HEAT,) integers as wide as a score
    winners: Any,  # scratch (cells / HEAT, rounded up) of the same type
) -> None:
    """The p closest cells of every row, up to rounding, by a tournament of order keys. O(n · (cells + p · HEAT))."""
    n, n_cells = scores.shape
    n_heats = winners.shape[0]
    last = np.iinfo(keys.dtype).max
    for g in range(n_cells, keys.shape[0]):
        keys[g] = last
    for i in range(n):
        stretch = score_norms.dtype.type(scales[i] if scales.shape[0] else 1.0)
        for g in range(n_cells):
            keys[g] = order_key(score_norms[g] + stretch * scores[i, g])
        for h in range(n_heats):
            winners[h] = lowest_of_heat(keys, h)
        for a in range(cells.shape[1]):
            heat = 0
            for h in range(1, n_heats):
                heat = h if winners[h] < winners[heat] else heat
            for g in range(heat * HEAT, (heat + 1) * HEAT):
                if keys[g] == winners[heat]:
                    cells[i, a] = g
                    keys[g] = last
                    break
            winners[heat] = lowest_of_heat(keys, heat)


@inline
def lowest_of_heat(keys: Any, heat: int) -> int:
    """The lowest key of a heat. It vectorises."""
    lowest = keys[heat * HEAT]
    for g in range(HEAT):
        key = keys[heat * HEAT + g]
        lowest = key if key < lowest else lowest
    return lowest


@kernel
def merge_closest(
    scores: Any,  # IN  (n, members) −2 x·(m − offset)
    score_norms: Any,  # IN  (members,) ‖m − offset‖²
    scales: Any,  # IN  (N,) or empty
    chosen: Any,  # IN  (n,) the rows' numbers in the shard
    members: Any,  # IN  (members,) numbers of the cells
    costs: Any,  # IN/OUT (N, p) the p lowest scores so far, ascending
    cells: Any,  # IN/OUT (N, p) whose they are
) -> None:
    """Keep the p closest cells of every row among those known and these. O(n · members), a little more for finds."""
    n, n_members = scores.shape
    last = cells.shape[1] - 1
    for k in range(n):
        i = chosen[k]
        stretch = score_norms.dtype.type(scales[i] if scales.shape[0] else 1.0)
        for g in range(n_members):
            cost = score_norms[g] + stretch * scores[k, g]
            if cost < costs[i, last]:
                a = last
                while a > 0 and cost < costs[i, a - 1]:
                    costs[i, a], cells[i, a] = costs[i, a - 1], cells[i, a - 1]
                    a -= 1
                costs[i, a], cells[i, a] = cost, members[g]


@kernel
def check_cell(
    rows: Any,  # IN  the rows of a task, gathered
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
        length = scale * lengths[k]
        shift = score_norms.dtype.type(length * length)
        tile_minima(scores, k, score_norms, stretch, shift, keys)
        lowest = 0
        for t in range(1, n_tiles):
            if keys[t] < keys[lowest]:
                lowest = t
        # not worth an exact distance if it is worse by more than rounding can explain
        limit = float_bits(score_norms.dtype.type((best[i] + 1e-5 * length * length) * (1.0 + 1e-5)))
        if keys[lowest] > limit:
            continue
        c = members[find_in_tile(scores, k, score_norms, stretch, shift, lowest, keys[lowest])]
        if c != labels[i]:
            distance = squared_distance(rows, k, scale, centers, c, norms)
            if distance < best[i]:
                best[i] = distance
                labels[i] = c
