"""First and second moments: of columns in one read of the rows, and squares added to packed scatters."""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import inline, kernel


@kernel
def add_moments(
    block: Any,  # IN  (n, D)
    scales: Any,  # IN  (n,) or empty
    weights: Any,  # IN  (n,) or empty
    shift: Any,  # IN  (D,) float64, near the mean: what is squared is small then and little cancels
    first: Any,  # IN/OUT (D,) float64: += Σ w (x − shift)
    second: Any,  # IN/OUT (D,) float64: += Σ w (x − shift)²
) -> None:
    """Weighted sums of differences to a shift and of their squares. O(n·D)."""
    n, n_columns = block.shape
    for i in range(n):
        weight = weights[i] if weights.shape[0] else 1.0
        scale = scales[i] if scales.shape[0] else 1.0
        for j in range(n_columns):
            difference = scale * block[i, j] - shift[j]
            first[j] += weight * difference
            second[j] += weight * difference * difference


@inline
def add_square(scatter: Any, c: int, share: float, difference: Any) -> None:
    """Add share · difference differenceᵀ to a packed scatter of whatever kind."""
    D, width = difference.shape[0], scatter.shape[1]
    if width == 1:
        total = 0.0
        for d in range(D):
            total += difference[d] * difference[d]
        scatter[c, 0] += share * total
    elif width == D:
        for d in range(D):
            scatter[c, d] += share * difference[d] * difference[d]
    else:
        place = 0
        for d in range(D):
            for e in range(d, D):
                scatter[c, place] += share * difference[d] * difference[e]
                place += 1
