"""First and second moments of the columns, in one read of the rows."""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import kernel


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
