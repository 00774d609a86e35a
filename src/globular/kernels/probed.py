"""Probing: the closest cells of every row, and the best centre of a cell against what the row already has."""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import kernel
from globular.kernels.hard import TILE, tile_minima
from globular.kernels.rows import order_key, squared_distance


@kernel
def closest_cells(
    scores: Any,  # IN  (n, cells) −2 x·(m − offset)
    score_norms: Any,  # IN  (cells,) ‖m − offset‖²
    scales: Any,  # IN  (n,) or empty
    cells: Any,  # OUT (n, p) the p cells of lowest score, lowest first
    costs: Any,  # scratch (p,) scores' dtype
) -> None:
    """The p closest cells of every row, up to rounding. O(n · cells)."""
    n, n_cells = scores.shape
    p = cells.shape[1]
    for i in range(n):
        stretch = score_norms.dtype.type(scales[i] if scales.shape[0] else 1.0)
        kept = 0
        for g in range(n_cells):
            cost = score_norms[g] + stretch * scores[i, g]
            if kept == p and cost >= costs[p - 1]:
                continue
            position = min(kept, p - 1)
            while position > 0 and costs[position - 1] > cost:
                costs[position] = costs[position - 1]
                cells[i, position] = cells[i, position - 1]
                position -= 1
            costs[position] = cost
            cells[i, position] = g
            kept = min(kept + 1, p)


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
        tile_minima(scores, k, score_norms, stretch, keys)
        lowest = 0
        for t in range(1, n_tiles):
            if keys[t] < keys[lowest]:
                lowest = t
        length = scale * lengths[k]
        # not worth an exact distance if it is worse by more than rounding can explain
        limit = order_key(score_norms.dtype.type(best[i] * (1.0 + 1e-5) - length * length * (1.0 - 1e-5)))
        if keys[lowest] > limit:
            continue
        for c in range(lowest * TILE, min(n_members, (lowest + 1) * TILE)):
            if order_key(score_norms[c] + stretch * scores[k, c]) == keys[lowest]:
                if members[c] != labels[i]:
                    distance = squared_distance(rows, k, scale, centers, members[c], norms)
                    if distance < best[i]:
                        best[i] = distance
                        labels[i] = members[c]
                break
