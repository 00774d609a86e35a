"""Exact distances of rows to centres, and when scores cannot nominate these."""

from __future__ import annotations

from typing import Any

from globular.jit import inline
from globular.kernels.rows import squared_distance


@inline
def scores_may_overflow(
    reach: float,  # IN  no less than ‖x − offset‖ and ‖m − offset‖
    scale: float,  # IN  factor of the row's scores
    tiny: float,  # IN  smallest normal number of the scores' dtype; its inverse is nearly the largest one
) -> bool:
    """Whether a score, or the factor, can leave the range of its dtype: such scores nominate nothing."""
    return not (4.0 * reach * reach * tiny < 1.0 and scale * tiny < 1.0)


@inline
def compare(
    rows: Any, row: int, scale: float, centers: Any, norms: Any, i: int, c: int, best: Any, labels: Any
) -> None:
    """Give the row to centre c if it is closer, or as close and of lower index; label −1 has no centre yet. O(D)."""
    squared = squared_distance(rows, row, scale, centers, c, norms)
    if labels[i] < 0 or squared < best[i] or (squared == best[i] and c < labels[i]):
        best[i] = squared
        labels[i] = c
