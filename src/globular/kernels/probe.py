"""Probing: the closest cells of every row, from scores. See `cells` for what rows do there."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.jit.memory import order_key

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
