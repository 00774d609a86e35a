"""Exact distances of rows to centres, and when scores cannot nominate these."""

from __future__ import annotations

from typing import Any

from globular.jit import inline, kernel
from globular.kernels.rows import row_length, squared_distance


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


@kernel
def row_lengths(
    rows: Any,  # IN
    out: Any,  # OUT (n,) ‖x‖
) -> None:
    """Euclidean length of every row. O(n · D)."""
    for i in range(out.shape[0]):
        out[i] = row_length(rows, i)


@kernel
def own_distances(
    rows: Any,  # IN
    scales: Any,  # IN  (n,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) float64
    labels: Any,  # IN  (n,)
    out: Any,  # OUT (n,) ‖x − m_label‖²
) -> None:
    """Squared distance of every row to the centre of its label. O(n · D)."""
    for i in range(labels.shape[0]):
        scale = scales[i] if scales.shape[0] else 1.0
        out[i] = squared_distance(rows, i, scale, centers, labels[i], norms)
